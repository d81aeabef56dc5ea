"""Which rows the slots of a layered graph take, so that most lines run straight."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import lru_cache

from dagrl.tui.dag_layers import Layers, Slot

_SWEEPS = 6
#: A line through several layers should run straight before anything else does.
_WEIGHT_OF_LINES = 3
_COST_OF_A_BEND = 2


@dataclass(frozen=True)
class Shape:
    """How nodes are drawn: rows of each, its rim above and below, and free rows between two of them."""

    rows: tuple[int, ...]
    rim: int
    gap: int


@dataclass(frozen=True)
class Rows:
    """The first row of each slot, and the rows in all."""

    layers: Layers
    shape: Shape
    top: Mapping[Slot, int]
    count: int

    def leaves(self, slot: Slot) -> int:
        """The row on which the line of a slot goes on to the right."""
        return self.top[slot] + (self.shape.rim if self.layers.is_node(slot) else 0)

    def enters(self, source: Slot, target: Slot) -> int:
        """The row on which the line of ``source`` arrives: one of its own for each source of a node."""
        return self.top[target] + _port(self.layers, self.shape, source, target)


def least_rows(layers: Layers, shape: Shape) -> int:
    """The rows that the fullest layer needs."""
    return max((_packed(layers, shape, layer)[-1] for layer in layers.slots), default=0)


@lru_cache(32)
def place_rows(layers: Layers, shape: Shape) -> Rows:
    """Rows for all slots, as few as the fullest layer needs; neighbours align where the order lets them."""
    room = least_rows(layers, shape)
    packed = [_packed(layers, shape, layer) for layer in layers.slots]
    steps, ends = [rows[:-1] for rows in packed], [rows[-1] for rows in packed]
    top = {
        slot: row
        for layer, step in zip(layers.slots, steps, strict=True)
        for slot, row in zip(layer, step, strict=True)
    }
    best = Rows(layers, shape, dict(top), room)
    for sweep in range(_SWEEPS):
        forth = sweep % 2 == 0
        for index in range(len(layers.slots))[:: 1 if forth else -1]:
            wants = [_wanted(layers, shape, top, slot, forth) for slot in layers.slots[index]]
            spare = room - ends[index]
            weights = [1 if layers.is_node(slot) else _WEIGHT_OF_LINES for slot in layers.slots[index]]
            top |= dict(zip(layers.slots[index], _settled(wants, weights, steps[index], spare), strict=True))
        found = Rows(layers, shape, dict(top), room)
        best = min(best, found, key=_cost)
    return best


def _port(layers: Layers, shape: Shape, source: Slot, target: Slot) -> int:
    return shape.rim + layers.before[target].index(source) if layers.is_node(target) else 0


def _height(layers: Layers, shape: Shape, slot: Slot) -> int:
    if not layers.is_node(slot):
        return 1
    return max(shape.rows[slot.node], len(layers.before[slot])) + 2 * shape.rim


def _packed(layers: Layers, shape: Shape, layer: Sequence[Slot]) -> list[int]:
    """The first row of each slot of a layer when all are moved up as far as they go, and the first row below them."""
    rows = [0]
    for index, slot in enumerate(layer):
        pair = layer[index : index + 2]
        free = shape.gap if len(pair) == 2 and all(map(layers.is_node, pair)) else 0
        rows.append(rows[-1] + _height(layers, shape, slot) + free)
    return rows


def _wanted(layers: Layers, shape: Shape, top: Mapping[Slot, int], slot: Slot, forth: bool) -> int:
    """The row at which a slot's line to a neighbour on one side is straight: the middle one, or the upper of two."""
    rim = shape.rim if layers.is_node(slot) else 0
    if forth:
        rows = [
            top[one] + (shape.rim if layers.is_node(one) else 0) - _port(layers, shape, one, slot)
            for one in layers.before[slot]
        ]
    else:
        rows = [top[one] + _port(layers, shape, slot, one) - rim for one in layers.after[slot]]
    return sorted(rows)[(len(rows) - 1) // 2] if rows else top[slot]


def _settled(wants: Sequence[int], weights: Sequence[int], steps: Sequence[int], spare: int) -> list[int]:
    """Rows in order that together are closest to the wanted ones: slots in each other's way move as a block."""
    blocks: list[tuple[list[int], int]] = []
    for want, weight, step in zip(wants, weights, steps, strict=True):
        shifts, members = [want - step] * weight, 1
        while blocks and _middle(blocks[-1][0]) > _middle(shifts):
            earlier, count = blocks.pop()
            shifts, members = earlier + shifts, members + count
        blocks.append((shifts, members))
    moved = [min(max(_middle(shifts), 0), spare) for shifts, members in blocks for _ in range(members)]
    return [step + shift for step, shift in zip(steps, moved, strict=True)]


def _middle(shifts: list[int]) -> int:
    return sorted(shifts)[len(shifts) // 2]


def _cost(rows: Rows) -> int:
    lengths = [
        abs(rows.leaves(source) - rows.enters(source, target))
        for source, targets in rows.layers.after.items()
        for target in targets
    ]
    return sum(length + _COST_OF_A_BEND for length in lengths if length)
