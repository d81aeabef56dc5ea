"""The graph as a list: order of the plan, tree lines where it forks, other parents by name, any width."""

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from rich.text import Text
from unit.tui.step_graphs import graph_of, labels_of
from unit.tui.test_box_drawing import DIAMOND, FAN, GRPO, graphs

from dagrl.tui.step_graph import StepGraph
from dagrl.tui.tree_drawing import draw_tree


def shown(graph: StepGraph, width: int = 60, lines: int = 2) -> list[str]:
    drawn = draw_tree(graph, labels_of(graph, lines), width)
    assert {line.cell_len for line in drawn} <= {width}
    return [line.plain.rstrip() for line in drawn]


def test_the_step_of_grpo() -> None:
    assert shown(graph_of(GRPO, 6)) == [
        "* N00     1 ms",
        "* N01     1 ms",
        "├─ * N02  1 ms",
        "│  * N03  1 ms",
        "└─ * N04  1 ms",
        "* N05     1 ms  ← N03, N04",
    ]


def test_forks_inside_forks_and_what_comes_after_them() -> None:
    edges = [(0, 1), (0, 6), (1, 2), (1, 3), (2, 4), (3, 4), (4, 5), (6, 7), (5, 8), (7, 8)]
    assert shown(graph_of(edges, 9), lines=1) == [
        "* N00",
        "├─ * N01",
        "│  ├─ * N02",
        "│  └─ * N03",
        "│  * N04     ← N02, N03",
        "│  * N05",
        "└─ * N06",
        "   * N07",
        "* N08        ← N05, N07",
    ]


def test_branches_that_take_turns_say_where_they_come_from() -> None:
    assert shown(graph_of([(0, 1), (0, 2), (1, 3), (2, 4)], 5), lines=1) == [
        "* N00",
        "├─ * N01",
        "└─ * N02",
        "* N03     ← N01",
        "* N04     ← N02",
    ]


def test_a_second_start_says_that_it_follows_nothing() -> None:
    assert shown(graph_of([(0, 2), (1, 2)], 3), lines=1) == ["* N00", "* N01  ← nothing", "* N02  ← N00, N01"]


def test_a_wide_fork() -> None:
    lines = shown(graph_of(FAN, 13), lines=1)
    assert lines[1:] == [*(f"├─ * N{i:02}" for i in range(1, 12)), "└─ * N12"]


def test_a_deep_fork_stops_to_indent_where_names_would_vanish() -> None:
    edges = [(2 * i, 2 * i + child) for i in range(15) for child in (1, 2)]
    graph = graph_of(edges, 31)
    for width in (20, 40, 80):
        lines = shown(graph, width, lines=1)
        assert [f"N{i:02}" in line for i, line in enumerate(lines)] == [True] * 31


@settings(deadline=None, max_examples=100)
@given(graph=graphs(), width=st.integers(1, 90))
def test_any_graph_in_any_width_has_its_lines_in_order(graph: StepGraph, width: int) -> None:
    lines = shown(graph, width)
    assert len(lines) == len(graph.nodes)
    if width >= 24:
        assert all(node.name in line for node, line in zip(graph.nodes, lines, strict=True))


@settings(deadline=None, max_examples=100)
@given(graph=graphs())
def test_each_parent_is_shown_by_a_line_or_by_name(graph: StepGraph) -> None:
    lines = shown(graph, 400, lines=1)
    names = [node.name for node in graph.nodes]
    starts = [line.index("*") for line in lines]
    for index, (name, line) in enumerate(zip(names, lines, strict=True)):
        _, _, parents = line.partition("← ")
        if parents:
            assert parents == (", ".join(graph.parents[name]) or "nothing")
            continue
        inward = 3 if line[: starts[index]].endswith(("├─ ", "└─ ")) else 0
        column = starts[index] - inward
        above = next((names[i] for i in range(index - 1, -1, -1) if starts[i] <= column), None)
        assert graph.parents[name] == ((above,) if above is not None else ())


@pytest.mark.parametrize("name", ["界" * 50, "e" + "\u0301" * 3, "x" * 100_000])
def test_names_of_any_kind_keep_the_width(name: str) -> None:
    graph = graph_of(DIAMOND, 4)
    labels = {node.id: [Text(name), Text(name)] for node in graph.nodes}
    for width in range(1, 60):
        assert {line.cell_len for line in draw_tree(graph, labels, width)} == {width}


def test_more_than_one_pool_is_named() -> None:
    assert shown(graph_of([(0, 1)], 2, ("main", "side")), lines=1) == ["* N00 @main", "* N01 @side"]
