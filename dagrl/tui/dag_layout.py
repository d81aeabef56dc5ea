"""Where everything of a drawn graph stands, for labels of given sizes in a given space; found once, used each frame."""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from functools import lru_cache

from dagrl.tui.dag_canvas import Canvas, Piece
from dagrl.tui.dag_channel import Channel, Net, Stroke, route
from dagrl.tui.dag_layers import Layers, Slot, layered
from dagrl.tui.dag_rows import Rows, Shape, least_rows, place_rows
from dagrl.tui.dag_styles import Request, Style, styles_for

#: Below a node without a box that has fewer lines than ways in.
_MORE_PORTS = "┊"


@dataclass(frozen=True)
class Layout:
    """The rows of the drawing as pieces, all rows ``width`` cells wide."""

    width: int
    rows: tuple[tuple[Piece, ...], ...]


@lru_cache(64)
def fitting_layout(request: Request) -> Layout | None:
    """The first style's layout that fits the space, from the roomiest to the tightest; None if none does."""
    layers = layered(len(request.names), request.edges)
    for style in dict.fromkeys(styles_for(request)):
        if _least_width(layers, style) <= request.width:
            layout = _laid_out(layers, style, request)
            if layout is not None:
                return layout
    return None


def _least_width(layers: Layers, style: Style) -> int:
    return sum(_layer_widths(layers, style)) + (len(layers.slots) - 1) * style.between(0) - 2 * (not style.boxed)


def _layer_widths(layers: Layers, style: Style) -> list[int]:
    return [max(style.outer(slot.node) for slot in layer if layers.is_node(slot)) for layer in layers.slots]


def _laid_out(layers: Layers, style: Style, request: Request) -> Layout | None:
    shape = Shape(style.lines, style.rim, style.gap)
    if least_rows(layers, shape) > request.height:
        return None
    rows = place_rows(layers, shape)
    channels = [route(nets, rows.count) for nets in _nets(layers, rows)]
    height = max([rows.count, *(channel.rows for channel in channels)])
    drawing = _Drawing(rows, style, channels, height)
    if drawing.canvas.width > request.width or height > request.height:
        return None
    drawing.draw()
    return Layout(drawing.canvas.width, drawing.canvas.rows())


def _nets(layers: Layers, rows: Rows) -> Iterator[list[Net]]:
    for layer in layers.slots[:-1]:
        yield [
            Net(rows.leaves(slot), tuple(rows.enters(slot, target) for target in layers.after[slot]))
            for slot in layer
            if layers.after[slot]
        ]


class _Drawing:
    """Puts nodes, the lines that pass layers, and channels on a canvas."""

    def __init__(self, rows: Rows, style: Style, channels: Sequence[Channel], height: int) -> None:
        self.layers = rows.layers
        self.rows = rows
        self.style = style
        self.channels = channels
        self.widths = _layer_widths(rows.layers, style)
        self.gaps = [style.between(channel.columns) for channel in channels]
        # Bare nodes have a free cell on either side, which the first and the last layer do not need.
        bare = int(not style.boxed)
        self.starts = [sum(self.widths[:index]) + sum(self.gaps[:index]) - bare for index in range(len(self.widths))]
        self.canvas = Canvas(max(sum(self.widths) + sum(self.gaps) - 2 * bare, 0), height)

    def draw(self) -> None:
        """Everything."""
        for layer in self.layers.slots:
            for slot in layer:
                if self.layers.is_node(slot):
                    self._node(slot)
                else:
                    start = self.starts[slot.layer]
                    self.canvas.across(self.rows.leaves(slot), start, start + self.widths[slot.layer] - 1)
        for index, channel in enumerate(self.channels):
            self._channel(index, channel)

    def _node(self, slot: Slot) -> None:
        node, left, top = slot.node, self.starts[slot.layer], self.rows.top[slot]
        content, rim = self.style.content(node), self.style.rim
        for line in range(self.style.lines[node]):
            name_only = line == 0 and not rim
            cells = self.style.names[node] if name_only else content
            self.canvas.put(top + rim + line, left + rim + 1, Piece("", cells, node, line))
        if rim:
            self._box(slot, content)
        for line in range(self.style.lines[node], len(self.layers.before[slot]) * (not rim)):
            self.canvas.put(top + line, left + 1, Piece(_MORE_PORTS, 1, node))
        if self.layers.after[slot]:
            end = left + (self.style.outer(node) if rim else self.style.names[node] + 2)
            self.canvas.across(self.rows.leaves(slot), end, left + self.widths[slot.layer])

    def _box(self, slot: Slot, content: int) -> None:
        node, left, top = slot.node, self.starts[slot.layer], self.rows.top[slot]
        inside = max(self.style.lines[node], len(self.layers.before[slot]))
        self.canvas.put(top, left, Piece(f"╭{'─' * (content + 2)}╮", content + 4, node))
        self.canvas.put(top + inside + 1, left, Piece(f"╰{'─' * (content + 2)}╯", content + 4, node))
        for line in range(inside):
            port = line == 0 and bool(self.layers.after[slot])
            has_label = line < self.style.lines[node]
            start = "│ " if has_label else f"│ {' ' * content}"
            self.canvas.put(top + 1 + line, left, Piece(start, len(start), node))
            self.canvas.put(top + 1 + line, left + content + 2, Piece(" ├" if port else " │", 2, node))

    def _channel(self, index: int, channel: Channel) -> None:
        left = self.starts[index] + self.widths[index]
        right = left + self.gaps[index] - 1
        for stroke in channel.strokes:
            self._stroke(stroke, channel.columns, left, right)
        for slot in self.layers.slots[index + 1]:
            for source in self.layers.before[slot] if self.layers.is_node(slot) else ():
                self.canvas.arrow(self.rows.enters(source, slot), right)

    def _stroke(self, stroke: Stroke, columns: int, left: int, right: int) -> None:
        start, end = (
            left if column < 0 else right if column == columns else left + 1 + column
            for column in (stroke.start[0], stroke.end[0])
        )
        if stroke.start[1] == stroke.end[1]:
            self.canvas.across(stroke.start[1], start, end)
        else:
            self.canvas.along(start, stroke.start[1], stroke.end[1])
