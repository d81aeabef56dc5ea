"""Lines between two layers: whatever rows they join, each leads from its own row to its own rows."""

from hypothesis import given, settings
from hypothesis import strategies as st
from unit.tui.tracer import ARMS, BACK, RIGHT, Cell

from dagrl.tui.dag_canvas import Canvas
from dagrl.tui.dag_channel import Channel, Net, route


@st.composite
def nets(draw: st.DrawFn) -> list[Net]:
    """Nets that come from rows of their own and go to rows of their own."""
    starts = draw(st.lists(st.integers(0, 9), min_size=1, max_size=6, unique=True))
    ends = draw(st.lists(st.integers(0, 9), min_size=len(starts), max_size=10, unique=True))
    owners = [*range(len(starts)), *[draw(st.integers(0, len(starts) - 1)) for _ in ends[len(starts) :]]]
    return [
        Net(start, tuple(end for end, owner in zip(ends, owners, strict=True) if owner == index))
        for index, start in enumerate(starts)
    ]


def drawn(channel: Channel) -> list[str]:
    canvas = Canvas(channel.columns + 2, channel.rows)
    for stroke in channel.strokes:
        (start, top), (end, bottom) = stroke.start, stroke.end
        if top == bottom:
            canvas.across(top, start + 1, end + 1)
        else:
            canvas.along(start + 1, top, bottom)
    return ["".join(piece.text for piece in row) for row in canvas.rows()]


def sides(lines: list[str], row: int) -> tuple[list[int], list[int]]:
    """The rows on which a line that comes in on the left touches the left and the right side."""
    left, right = [row], list[int]()
    ways: list[tuple[Cell, Cell]] = [((row, 0), RIGHT)]
    seen: set[tuple[Cell, Cell]] = set()
    while ways:
        way = ways.pop()
        if way in seen:
            continue
        seen.add(way)
        (row, column), heading = way
        if column < 0:
            left.append(row)
        elif column == len(lines[0]):
            right.append(row)
        else:
            sign = lines[row][column]
            assert BACK[heading] in ARMS[sign], "\n".join(lines)
            onward = {heading} if sign == "┼" else ARMS[sign] - {BACK[heading]}
            ways += [((row + arm[0], column + arm[1]), arm) for arm in onward]
    return left, sorted(right)


@settings(deadline=None, max_examples=500)
@given(nets())
def test_each_line_leads_to_its_rows_alone(given_nets: list[Net]) -> None:
    lines = drawn(route(given_nets, 10))
    for net in given_nets:
        assert sides(lines, net.row) == ([net.row], sorted(net.ends)), "\n".join(lines)


def test_lines_that_block_each_other_go_round_over_a_free_row() -> None:
    below = route([Net(0, (1,)), Net(1, (0,))], 2)
    assert drawn(below) == ["─┐┌──", "─┼┘┌─", " └─┘ "]
    between = route([Net(0, (2,)), Net(2, (0,))], 3)
    assert drawn(between) == ["─┐┌──", " └┼┐ ", "──┘└─"]


def test_a_straight_line_takes_no_column() -> None:
    assert route([Net(0, (0,)), Net(3, (3,))], 4).columns == 0


def test_lines_that_do_not_meet_share_a_column() -> None:
    assert route([Net(0, (1,)), Net(3, (2,))], 4).columns == 1
