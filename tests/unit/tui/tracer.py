"""Reads a drawing as a person does: finds the nodes, and follows lines from cell to cell to where they arrive."""

import re

from dagrl.tui.step_graph import StepGraph

UP, DOWN, LEFT, RIGHT = (-1, 0), (1, 0), (0, -1), (0, 1)
ARMS = {
    "─": {LEFT, RIGHT}, "│": {UP, DOWN}, "┌": {DOWN, RIGHT}, "┐": {DOWN, LEFT}, "└": {UP, RIGHT}, "┘": {UP, LEFT},
    "├": {UP, DOWN, RIGHT}, "┤": {UP, DOWN, LEFT}, "┬": {DOWN, LEFT, RIGHT}, "┴": {UP, LEFT, RIGHT},
    "┼": {UP, DOWN, LEFT, RIGHT}, "▶": {LEFT},
}  # fmt: skip
BACK = {UP: DOWN, DOWN: UP, LEFT: RIGHT, RIGHT: LEFT}
Cell = tuple[int, int]


class Drawing:
    """The characters of a drawing whose names look like N07."""

    def __init__(self, lines: list[str], graph: StepGraph) -> None:
        self.lines = lines
        self.boxed = any("╭" in line for line in lines)
        self.names: dict[str, Cell] = {}
        for row, line in enumerate(lines):
            for match in re.finditer(r"\* (N\d\d)( @\w+)?", line):
                assert match[1] not in self.names, f"{match[1]} appears twice"
                self.names[match[1]] = (row, match.start())
        assert set(self.names) == {node.id for node in graph.nodes}, "every node appears"
        self.areas = {
            name: self._box(cell) if self.boxed else self._bare(name, cell) for name, cell in self.names.items()
        }

    def at(self, row: int, column: int) -> str:
        inside = 0 <= row < len(self.lines) and 0 <= column < len(self.lines[row])
        return self.lines[row][column] if inside else " "

    def _box(self, name: Cell) -> tuple[int, int, int, int]:
        """The box around a name, whose rim must be whole: top, left, bottom, right."""
        top, left = name[0] - 1, name[1] - 2
        right = next(column for column in range(left + 1, len(self.lines[top])) if self.at(top, column) == "╮")
        bottom = next(row for row in range(top + 1, len(self.lines)) if self.at(row, left) == "╰")
        width = right - left - 1
        assert self.lines[top][left : right + 1] == f"╭{'─' * width}╮"
        assert self.lines[bottom][left : right + 1] == f"╰{'─' * width}╯"
        for row in range(top + 1, bottom):
            assert self.at(row, left) == "│"
            assert self.at(row, right) in ("│├" if row == name[0] else "│")
        return top, left, bottom, right

    def _bare(self, name: str, cell: Cell) -> tuple[int, int, int, int]:
        """A node without a box: from its name down to the next name that stands in the same column."""
        row, left = cell
        below = [other[0] for other in self.names.values() if other[1] == left and other[0] > row]
        end = re.match(r"\* N\d\d( @\w+)?", self.lines[row][left:])
        assert end is not None
        return row, left, min(below, default=len(self.lines)) - 1, left + end.end() - 1

    def leaves(self, name: str) -> Cell:
        """The cell where a node's line starts, if it has one."""
        return self.names[name][0], self.areas[name][3] + (1 if self.boxed else 2)

    def arrives(self, cell: Cell) -> str:
        """The node that an arrow head points at."""
        row, column = cell[0], cell[1] + (1 if self.boxed else 2)
        (found,) = [
            name
            for name, (top, left, bottom, _) in self.areas.items()
            if left == column and (top < row < bottom if self.boxed else top <= row <= bottom)
        ]
        return found

    def reached(self, name: str) -> list[str]:
        """The nodes at the ends of all lines that are joined to the line that leaves a node."""
        start = self.leaves(name)
        if LEFT not in ARMS.get(self.at(*start), set()):
            return []
        starts = {self.leaves(other) for other in self.names} - {start}
        found: list[str] = []
        open_ways = [(start, RIGHT)]
        seen: set[tuple[Cell, Cell]] = set()
        while open_ways:
            way = open_ways.pop()
            if way in seen:
                continue
            seen.add(way)
            (row, column), heading = way
            sign = self.at(row, column)
            arms = ARMS.get(sign, set())
            assert BACK[heading] in arms, f"the line from {name} breaks off at {row}, {column}: {sign!r}"
            assert (row, column) not in starts, f"the line from {name} runs into another node's"
            if sign == "▶":
                found.append(self.arrives((row, column)))
                continue
            onward = {heading} if sign == "┼" else arms - {BACK[heading]}
            open_ways += [((row + arm[0], column + arm[1]), arm) for arm in onward]
        return sorted(found)
