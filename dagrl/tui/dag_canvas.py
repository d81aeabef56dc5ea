"""A grid on which lines are drawn as arms of cells, and labels and rims are laid over them."""

from collections.abc import Iterator
from dataclasses import dataclass

ARROW = "▶"
_LEFT, _RIGHT, _UP, _DOWN = 1, 2, 4, 8
#: By the arms of a cell: the sum of the numbers above.
_GLYPHS = " ───│┘└┴│┐┌┬│┤├┼"


@dataclass(frozen=True)
class Piece:
    """A run of cells of a row: ``text``, or line ``line`` of the label of ``node`` where ``line`` is not negative."""

    text: str
    cells: int
    node: int = -1
    line: int = -1


class Canvas:
    """Lines and pieces by row and column."""

    def __init__(self, width: int, height: int) -> None:
        self.width = width
        self.height = height
        self._arms = [[0] * width for _ in range(height)]
        self._arrows: set[tuple[int, int]] = set()
        self._pieces: list[dict[int, Piece]] = [{} for _ in range(height)]

    def across(self, row: int, start: int, end: int) -> None:
        """A line along a row, both ends included."""
        for column in range(start, end + 1):
            self._arms[row][column] |= (_LEFT if column > start else 0) | (_RIGHT if column < end else 0)

    def along(self, column: int, top: int, bottom: int) -> None:
        """A line along a column, both ends included."""
        for row in range(top, bottom + 1):
            self._arms[row][column] |= (_UP if row > top else 0) | (_DOWN if row < bottom else 0)

    def arrow(self, row: int, column: int) -> None:
        """A head that points to the right, where a line arrives."""
        self._arrows.add((row, column))

    def put(self, row: int, column: int, piece: Piece) -> None:
        """A piece that starts at a column."""
        self._pieces[row][column] = piece

    def rows(self) -> tuple[tuple[Piece, ...], ...]:
        """Every row as pieces that fill its width."""
        return tuple(tuple(self._row(row)) for row in range(self.height))

    def _row(self, row: int) -> Iterator[Piece]:
        column = 0
        for start, piece in sorted(self._pieces[row].items()):
            if start > column:
                yield self._lines(row, column, start)
            yield piece
            column = start + piece.cells
        if column < self.width:
            yield self._lines(row, column, self.width)

    def _lines(self, row: int, start: int, end: int) -> Piece:
        arms = self._arms[row]
        cells = (ARROW if (row, column) in self._arrows else _GLYPHS[arms[column]] for column in range(start, end))
        return Piece("".join(cells), end - start)
