"""Where the nodes of a graph stand from left to right, and in which order from top to bottom."""

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from functools import lru_cache
from itertools import pairwise
from typing import NamedTuple

_SWEEPS = 8


class Slot(NamedTuple):
    """A place in a layer: a node's own, or one where its line passes on the way to later layers."""

    node: int
    layer: int


@dataclass(frozen=True, eq=False)
class Layers:
    """Slots by layer, from top to bottom; ``after`` and ``before`` are the neighbours of each that lines join."""

    home: tuple[int, ...]
    slots: tuple[tuple[Slot, ...], ...]
    after: Mapping[Slot, tuple[Slot, ...]]
    before: Mapping[Slot, tuple[Slot, ...]]

    def is_node(self, slot: Slot) -> bool:
        """Whether the node itself stands there."""
        return self.home[slot.node] == slot.layer


@lru_cache(32)
def layered(count: int, edges: tuple[tuple[int, int], ...]) -> Layers:
    """The layers of an acyclic graph whose edges lead from lower to higher nodes, with few crossings between them."""
    home = _longest_paths(count, edges)
    after = _joined(count, edges, home)
    before = {slot: tuple(one for one, targets in after.items() if slot in targets) for slot in after}
    ordered = _fewest_crossings(_start(home, after), after, before)
    place = {slot: index for layer in ordered for index, slot in enumerate(layer)}
    by_place: Callable[[Slot], int] = place.__getitem__
    return Layers(
        home=home,
        slots=tuple(map(tuple, ordered)),
        after={slot: tuple(sorted(targets, key=by_place)) for slot, targets in after.items()},
        before={slot: tuple(sorted(sources, key=by_place)) for slot, sources in before.items()},
    )


def _longest_paths(count: int, edges: Sequence[tuple[int, int]]) -> tuple[int, ...]:
    layer = [0] * count
    for source, target in sorted(edges, key=lambda edge: edge[1]):
        layer[target] = max(layer[target], layer[source] + 1)
    return tuple(layer)


def _joined(count: int, edges: Sequence[tuple[int, int]], home: Sequence[int]) -> dict[Slot, tuple[Slot, ...]]:
    """Each slot and those of the next layer that its line leads to; edges of one node share their way."""
    after: dict[Slot, tuple[Slot, ...]] = {}
    for node in range(count):
        targets = [target for source, target in edges if source == node]
        last = max((home[target] - 1 for target in targets), default=home[node])
        for layer in range(home[node], last + 1):
            ends = [Slot(target, layer + 1) for target in targets if home[target] == layer + 1]
            after[Slot(node, layer)] = (*ends, *([Slot(node, layer + 1)] if layer < last else []))
    return after


def _start(home: Sequence[int], slots: Iterable[Slot]) -> list[list[Slot]]:
    """Each layer's nodes, and below them the lines that pass, so that the longest way tends to stay on top."""
    ranked = sorted(slots, key=lambda slot: (home[slot.node] != slot.layer, slot.node))
    return [[slot for slot in ranked if slot.layer == layer] for layer in range(max(home, default=-1) + 1)]


def _fewest_crossings(
    layers: list[list[Slot]], after: Mapping[Slot, tuple[Slot, ...]], before: Mapping[Slot, tuple[Slot, ...]]
) -> list[list[Slot]]:
    """Each slot moves to the mean place of its neighbours, layer by layer, forth and back; the best order is kept."""
    best, fewest = layers, _crossings(layers, after)
    current = layers
    for sweep in range(_SWEEPS):
        if fewest == 0:
            break
        forth = sweep % 2 == 0
        current = _swept(current, before if forth else after, forth)
        crossings = _crossings(current, after)
        if crossings < fewest:
            best, fewest = current, crossings
    return best


def _swept(layers: list[list[Slot]], near: Mapping[Slot, tuple[Slot, ...]], forth: bool) -> list[list[Slot]]:
    done: list[list[Slot]] = []
    place: dict[Slot, int] = {}
    for layer in layers if forth else reversed(layers):
        mean = {
            slot: sum(place[one] for one in near[slot]) / len(near[slot]) if near[slot] else float(index)
            for index, slot in enumerate(layer)
        }
        done.append(sorted(layer, key=mean.__getitem__))
        place |= {slot: index for index, slot in enumerate(done[-1])}
    return done if forth else done[::-1]


def _crossings(layers: list[list[Slot]], after: Mapping[Slot, tuple[Slot, ...]]) -> int:
    count = 0
    for left, right in pairwise(layers):
        place = {slot: index for index, slot in enumerate(right)}
        ends = [[place[target] for target in after[slot]] for slot in left]
        for upper in range(len(ends)):
            for lower in range(upper + 1, len(ends)):
                count += sum(high > low for high in ends[upper] for low in ends[lower])
    return count
