"""A step's graph as boxes from left to right, joined by lines that lead from each op to those that wait for it."""

from collections.abc import Mapping, Sequence

from rich.style import Style
from rich.text import Text

from dagrl.tui.dag_canvas import Piece
from dagrl.tui.dag_layout import Request, fitting_layout
from dagrl.tui.step_graph import StepGraph
from dagrl.tui.text import cells, cut

EDGE = "dim"


def draw(
    graph: StepGraph,
    labels: Mapping[str, Sequence[Text]],
    width: int,
    height: int,
    *,
    styles: Mapping[str, str | Style] | None = None,
    reserve: int | Mapping[str, int] = 10,
) -> list[Text] | None:
    """The drawing, its lines all equally wide, in at most ``width`` cells and ``height`` lines; None if it cannot be.

    The first line of a label, a glyph and a name, sets how wide the node is; lines below get as much, or ``reserve``
    cells (for all nodes, or by node) if that is more. As long as first lines keep their width and labels their number
    of lines, nothing moves.
    ``styles`` are those of the boxes, by node.
    """
    shown = [_lines(graph, index, labels) for index in range(len(graph.nodes))]
    request = Request(
        edges=graph.numbered_edges,
        names=tuple(cells(lines[0].plain) for lines in shown),
        lines=tuple(map(len, shown)),
        reserve=tuple(reserve if isinstance(reserve, int) else reserve[node.id] for node in graph.nodes),
        width=width,
        height=height,
    )
    layout = fitting_layout(request)
    if layout is None:
        return None
    rims = [(styles or {}).get(node.id, "") for node in graph.nodes]
    return [_drawn(row, shown, rims) for row in layout.rows]


def _lines(graph: StepGraph, index: int, labels: Mapping[str, Sequence[Text]]) -> Sequence[Text]:
    node = graph.nodes[index]
    lines = labels[node.id]
    tag = graph.pool_tag(node)
    return [lines[0].copy().append(tag, "dim"), *lines[1:]] if tag else lines


def _drawn(row: Sequence[Piece], labels: Sequence[Sequence[Text]], rims: Sequence[str | Style]) -> Text:
    line = Text(no_wrap=True, end="")
    for piece in row:
        if piece.line >= 0:
            append_fitted(line, labels[piece.node][piece.line], piece.cells)
        else:
            line.append(piece.text, EDGE if piece.node < 0 else rims[piece.node])
    return line


def append_fitted(line: Text, label: Text, width: int) -> None:
    """Append a label in exactly ``width`` cells, cut or filled with spaces."""
    plain = label.plain
    shown = cut(plain, width)
    if shown == plain:
        line.append_text(label)
    elif shown:
        line.append_text(label[: len(shown) - 1])
        line.append(shown[-1])
    missing = width - cells(shown)
    if missing:
        line.append(" " * missing)
