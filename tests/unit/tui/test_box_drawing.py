"""Drawings of graphs: lines lead where the edges do, nodes are whole, and known graphs look as they should."""

import os
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from rich.text import Text
from support import calls_of
from unit.tui.step_graphs import graph_of, labels_of
from unit.tui.tracer import Drawing

from dagrl.tui.box_drawing import draw
from dagrl.tui.step_graph import StepGraph

SNAPSHOTS = Path(__file__).parent / "snapshots"
CHAIN = [(i, i + 1) for i in range(4)]
DIAMOND = [(0, 1), (0, 2), (1, 3), (2, 3)]
GRPO = [(0, 1), (1, 2), (2, 3), (1, 4), (3, 5), (4, 5)]
BOTH_TO_BOTH = [(0, 2), (0, 3), (1, 2), (1, 3)]
LONG = [(0, 1), (1, 2), (2, 3), (3, 4), (0, 4), (1, 3), (0, 3)]
FAN = [(0, i) for i in range(1, 13)]
FAN_AND_BACK = [*FAN, *[(i, 13) for i in range(1, 13)]]
FIFTEEN = [
    (0, 1),
    (0, 2),
    (1, 3),
    (1, 4),
    (3, 5),
    (3, 7),
    (4, 7),
    (4, 9),
    (5, 6),
    (5, 8),
    (9, 10),
    (9, 11),
    (10, 12),
    (12, 13),
    (12, 14),
]
FORTY = [(i // 2, i) for i in range(1, 40)] + [(i, i + 9) for i in range(11, 30)]


def drawn(graph: StepGraph, width: int, height: int, lines: int = 1) -> list[str] | None:
    found = draw(graph, labels_of(graph, lines), width, height, reserve=6)
    if found is None:
        return None
    assert len(found) <= height
    assert {line.cell_len for line in found} <= {found[0].cell_len if found else 0}
    assert all(line.cell_len <= width for line in found)
    return [line.plain for line in found]


def check(graph: StepGraph, lines: list[str]) -> None:
    drawing = Drawing(lines, graph)
    for node in graph.nodes:
        assert drawing.reached(node.id) == sorted(graph.children[node.id]), "\n".join(lines)


@st.composite
def graphs(draw_from: st.DrawFn) -> StepGraph:
    count = draw_from(st.integers(1, 14))
    pairs = [(source, target) for target in range(count) for source in range(target)]
    edges = draw_from(st.lists(st.sampled_from(pairs), max_size=24)) if pairs else []
    return graph_of(edges, count, draw_from(st.sampled_from([("main",), ("main", "side")])))


@settings(deadline=None, max_examples=200)
@given(graph=graphs(), lines=st.integers(1, 3), narrower=st.lists(st.integers(1, 40), max_size=3))
def test_every_line_can_be_followed_in_any_graph(graph: StepGraph, lines: int, narrower: list[int]) -> None:
    shown = drawn(graph, 1000, 400, lines)
    assert shown is not None
    check(graph, shown)
    for less in narrower:
        smaller = drawn(graph, len(shown[0]) - less, len(shown) - less // 4, lines)
        if smaller is not None:
            check(graph, smaller)


@pytest.mark.parametrize(
    ("edges", "count"),
    [
        (CHAIN, 5),
        (DIAMOND, 4),
        (GRPO, 6),
        (BOTH_TO_BOTH, 4),
        (LONG, 5),
        (FAN, 13),
        (FAN_AND_BACK, 14),
        (FIFTEEN, 15),
        (FORTY, 40),
    ],
)
def test_every_line_can_be_followed_however_little_space_there_is(edges: list[tuple[int, int]], count: int) -> None:
    graph = graph_of(edges, count)
    styles: set[bool] = set()
    for width in (*range(60, 20, -1), *range(300, 60, -11)):
        for height in (200, 40, 10):
            shown = drawn(graph, width, height, 3)
            if shown is not None:
                check(graph, shown)
                styles.add("╭" in shown[0] + shown[-1] + "".join(shown))
    assert styles == {True, False}, "both looks were drawn"


@pytest.mark.parametrize(
    ("name", "edges", "count", "lines", "pools"),
    [
        ("one", [], 1, 2, ("main",)),
        ("diamond", DIAMOND, 4, 2, ("main",)),
        ("both_to_both", BOTH_TO_BOTH, 4, 2, ("main",)),
        ("long_edges", LONG, 5, 1, ("main",)),
        ("fan", FAN, 13, 1, ("main",)),
        ("fifteen", FIFTEEN, 15, 2, ("main",)),
        ("two_pools", GRPO, 6, 2, ("main", "side")),
    ],
)
def test_known_graphs_look_as_they_should(
    name: str, edges: list[tuple[int, int]], count: int, lines: int, pools: tuple[str, ...]
) -> None:
    graph = graph_of(edges, count, pools)
    shown = drawn(graph, 120, 60, lines)
    assert shown is not None
    text = "\n".join(line.rstrip() for line in shown) + "\n"
    file = SNAPSHOTS / f"{name}.txt"
    if os.environ.get("DAGRL_UPDATE_SNAPSHOTS"):
        file.write_text(text)
    assert text == file.read_text()


def grpo_labels() -> tuple[StepGraph, dict[str, list[Text]]]:
    names = ["prompts", "generate", "verify", "grpo_advantage", "ref_logprob", "update_policy"]
    graph = graph_of(GRPO, 6)
    texts = [[f"✓ {name}", "  51 ms", "  512 rows"] for name in names]
    texts[1][2] = "  8.5k tok/s"
    texts[5] = ["● update_policy", "  61 of 117 ms", "  batch 2/4"]
    return graph, {node.id: [Text(line) for line in lines] for node, lines in zip(graph.nodes, texts, strict=True)}


GRPO_IN_86_BY_10 = """\
✓ prompts ────▶ ✓ generate ───┬▶ ✓ verify ──────▶ ✓ grpo_advantage ──▶ ● update_policy
  51 ms           51 ms       │    51 ms            51 ms           ┌▶   61 of 117 ms
  512 rows        8.5k tok/s  │    512 rows         512 rows        │    batch 2/4
                              │                                     │
                              └▶ ✓ ref_logprob ─────────────────────┘
                                   51 ms
                                   512 rows
"""


def test_the_step_of_grpo_fits_86_by_10() -> None:
    graph, labels = grpo_labels()
    shown = draw(graph, labels, 86, 10, reserve=12)
    assert shown is not None
    assert "\n".join(line.plain.rstrip() for line in shown) + "\n" == GRPO_IN_86_BY_10


def test_nothing_moves_when_labels_change() -> None:
    graph, labels = grpo_labels()
    before = draw(graph, labels, 86, 10)
    changed = {node: [Text(f"● {line[0].plain[2:]}"), Text("1" * 99), Text("")] for node, line in labels.items()}
    after = draw(graph, changed, 86, 10)
    assert before is not None
    assert after is not None
    marks = "─│┌┐└┘├┤┬┴┼▶"
    places = [[(line.plain.index(mark), mark) for mark in line.plain if mark in marks] for line in before]
    assert places == [[(line.plain.index(mark), mark) for mark in line.plain if mark in marks] for line in after]


def test_wide_and_combining_names_keep_their_cells() -> None:
    graph = graph_of(DIAMOND, 4)
    names = ["界" * 9, "é" * 5, "اسم", "x" * 100_000]
    labels = {node.id: [Text(f"* {name}"), Text("界" * 40)] for node, name in zip(graph.nodes, names, strict=True)}
    for width in range(1, 140, 3):
        shown = draw(graph, labels, width, 20)
        if shown is not None:
            assert {line.cell_len for line in shown} == {shown[0].cell_len}
            assert shown[0].cell_len <= width
    assert draw(graph, labels, 140, 20) is not None


def test_styles_are_those_of_the_boxes_alone() -> None:
    graph = graph_of([(0, 1)], 2)
    shown = draw(graph, labels_of(graph), 80, 10, styles={"N00": "red"})
    assert shown is not None
    top = shown[0]
    assert [(top.plain[span.start : span.end].strip(), span.style) for span in top.spans if span.style == "red"] == [
        ("╭───────╮", "red")
    ]


def test_no_space_is_no_drawing() -> None:
    graph = graph_of(CHAIN, 5)
    assert draw(graph, labels_of(graph), 10, 10) is None
    assert draw(graph, labels_of(graph), 100, 0) is None
    assert draw(graph_of([], 0), {}, 10, 10) == []


@pytest.mark.parametrize(("edges", "count", "most"), [(GRPO, 6, 3_000), (FIFTEEN, 15, 8_000)])
def test_the_next_drawing_of_a_graph_is_little_work(edges: list[tuple[int, int]], count: int, most: int) -> None:
    graph = graph_of(edges, count)
    labels = labels_of(graph, 3)
    assert draw(graph, labels, 140, 40) is not None
    assert calls_of(lambda: draw(graph, labels, 140, 40)) < most
