"""Lines between two layers: each source has columns of its own, so lines of two sources only ever cross."""

from collections.abc import Sequence
from dataclasses import dataclass


@dataclass(frozen=True)
class Net:
    """A line that comes from the left on one row, and leaves to the right on each of others."""

    row: int
    ends: tuple[int, ...]


@dataclass(frozen=True, eq=False)
class Trunk:
    """A piece of a net that runs up and down: reached on one row from the left, left on others to the right."""

    row: int
    ends: tuple[int, ...]

    @property
    def span(self) -> tuple[int, int]:
        """The rows from its top to its bottom."""
        return min(self.row, *self.ends), max(self.row, *self.ends)

    def touches(self, other: "Trunk") -> bool:
        """Whether the two share a row, and so cannot share a column."""
        (top, bottom), (others_top, others_bottom) = self.span, other.span
        return top <= others_bottom and others_top <= bottom


@dataclass(frozen=True)
class Stroke:
    """A straight piece of a line from one (column, row) to another, both included."""

    start: tuple[int, int]
    end: tuple[int, int]


@dataclass(frozen=True)
class Channel:
    """Strokes in a channel; column -1 is left of its ``columns``, and column ``columns`` right of them."""

    columns: int
    rows: int
    strokes: tuple[Stroke, ...]


def route(nets: Sequence[Net], rows: int) -> Channel:
    """Columns for the nets of a channel; ``rows`` grows where a line needs a free row to get past another."""
    placed = _Columns(rows, {row for net in nets for row in (net.row, *net.ends)})
    for net in nets:
        placed.add(net)
    placed.place_all()
    columns = max(placed.column.values(), default=-1) + 1
    strokes = [_trunk_stroke(trunk, column) for trunk, column in placed.column.items()]
    for trunk, column in placed.column.items():
        start = placed.column[placed.came_from[trunk]] if trunk in placed.came_from else -1
        strokes.append(Stroke((start, trunk.row), (column, trunk.row)))
        strokes += [Stroke((column, end), (columns, end)) for end in trunk.ends if end not in placed.inner_rows]
    strokes += [Stroke((-1, net.row), (columns, net.row)) for net in nets if net.row in net.ends]
    return Channel(columns, placed.rows, tuple(strokes))


def _trunk_stroke(trunk: Trunk, column: int) -> Stroke:
    top, bottom = trunk.span
    return Stroke((column, top), (column, bottom))


class _Columns:
    """Gives each trunk a column, from left to right.

    A trunk left of another leaves on no row on which the other is still on its way in. Where trunks wait for each
    other in a circle, one is led to a free row first and goes on from there.
    """

    def __init__(self, rows: int, used: set[int]) -> None:
        self.rows = rows
        self.used = used
        self.waiting: list[Trunk] = []
        self.column: dict[Trunk, int] = {}
        self.came_from: dict[Trunk, Trunk] = {}
        self.inner_rows: set[int] = set()

    def add(self, net: Net) -> None:
        """The trunks of a net: none if it is straight; two where three ways and the line in would look like a cross."""
        above = tuple(end for end in net.ends if end < net.row)
        below = tuple(end for end in net.ends if end > net.row)
        if net.row in net.ends and above and below:
            self.waiting += [Trunk(net.row, above), Trunk(net.row, below)]
        elif above or below:
            self.waiting.append(Trunk(net.row, (*above, *below)))

    def place_all(self) -> None:
        """Place every trunk, next the one that crosses least when it stands left of those that remain."""
        while self.waiting:
            ready = [trunk for trunk in self.waiting if not any(self._precedes(one, trunk) for one in self.waiting)]
            if ready:
                self._place(min(ready, key=self._crossings))
            else:
                self._lead_aside(min(self.waiting, key=lambda trunk: len(trunk.ends)))

    def _precedes(self, left: Trunk, right: Trunk) -> bool:
        if self.came_from.get(right) is left:
            return True
        return left is not right and left.row in right.ends and left.row not in self.inner_rows

    def _crossings(self, trunk: Trunk) -> int:
        others = [other for other in self.waiting if other is not trunk]
        return sum(_crossed(trunk, other) - _crossed(other, trunk) for other in others)

    def _place(self, trunk: Trunk) -> None:
        self.waiting.remove(trunk)
        near = [column for other, column in self.column.items() if other.touches(trunk)]
        self.column[trunk] = max(near, default=-1) + 1

    def _lead_aside(self, trunk: Trunk) -> None:
        """Split a trunk: one piece to the nearest free row, or a new one at the bottom, and one from there."""
        by_distance = sorted(range(self.rows), key=lambda row: abs(row - trunk.row))
        free = next((row for row in by_distance if row not in self.used), self.rows)
        self.rows = max(self.rows, free + 1)
        self.used.add(free)
        self.inner_rows.add(free)
        aside, onward = Trunk(trunk.row, (free,)), Trunk(free, trunk.ends)
        self.waiting.remove(trunk)
        self.waiting += [aside, onward]
        self.came_from[onward] = aside


def _crossed(left: Trunk, right: Trunk) -> int:
    """How often the lines of two trunks cross when the first stands left of the second."""
    (top, bottom), (others_top, others_bottom) = left.span, right.span
    into = top < right.row < bottom
    return into + sum(others_top < end < others_bottom for end in left.ends)
