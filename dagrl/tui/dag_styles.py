"""Ways to draw a graph: with boxes or bare, and how much space everything gets."""

from collections.abc import Iterator
from dataclasses import dataclass
from itertools import product

#: Cells that names may take, tried in turn.
_NAME_CELLS = (40, 24, 16)
#: The least columns of a channel, and its cells beside them: a way in, and the arrow head after one more or none.
_BOXED_CHANNELS = ((1, 3), (1, 2))
_BARE_CHANNELS = (*_BOXED_CHANNELS, (0, 2))


@dataclass(frozen=True)
class Request:
    """What is to be drawn: edges between numbered nodes, and of each the cells of its name and lines of its label.

    ``reserve`` cells are kept for the lines below each name.
    """

    edges: tuple[tuple[int, int], ...]
    names: tuple[int, ...]
    lines: tuple[int, ...]
    reserve: tuple[int, ...]
    width: int
    height: int


@dataclass(frozen=True)
class Style:
    """One way to draw: with boxes or bare, how much of each name and label, and how wide channels are."""

    boxed: bool
    names: tuple[int, ...]
    lines: tuple[int, ...]
    reserve: tuple[int, ...]
    gap: int
    channel: tuple[int, int]

    def between(self, columns: int) -> int:
        """Cells of a channel with so many columns."""
        least, margin = self.channel
        return margin + max(columns, least)

    @property
    def rim(self) -> int:
        """Cells of a box around its content, above and below; left and right there is a space more."""
        return int(self.boxed)

    def content(self, node: int) -> int:
        """Cells for each line of the node's label."""
        return max(self.names[node], self.reserve[node] if self.lines[node] > 1 else 0)

    def outer(self, node: int) -> int:
        """Cells of the node with its rim and a space on either side."""
        return self.content(node) + 2 * self.rim + 2


def styles_for(request: Request) -> Iterator[Style]:
    """From the roomiest to the tightest: boxes, then none; details get narrower, then fewer, then names shorter."""
    for name_cells in _NAME_CELLS:
        names = tuple(min(name, name_cells) for name in request.names)
        for most in range(max(request.lines, default=1), 0, -1):
            lines = tuple(min(count, most) for count in request.lines)
            yield from (Style(True, names, lines, request.reserve, 0, channel) for channel in _BOXED_CHANNELS)
            gaps = (1, 0) if most > 1 else (0,)
            for gap, channel in product(gaps, _BARE_CHANNELS):
                yield Style(False, names, lines, request.reserve, gap, channel)
            for cells in range(max(request.reserve, default=0), -1, -1):
                reserve = tuple(min(each, cells) for each in request.reserve)
                yield from (Style(False, names, lines, reserve, gap, _BARE_CHANNELS[-1]) for gap in gaps)
