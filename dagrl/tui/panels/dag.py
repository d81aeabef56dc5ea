"""The step as a graph: where it is, what each node does and what waits for what."""

from __future__ import annotations

from collections.abc import Mapping
from functools import lru_cache

from rich.text import Text

from dagrl.tui.box_drawing import draw
from dagrl.tui.canvas import box, fit, join, line
from dagrl.tui.glyphs import LABEL, LOOKS
from dagrl.tui.node_labels import RESERVE, box_labels, list_labels, narrow_labels
from dagrl.tui.node_status import NodeStatus, shown_pipeline, statuses
from dagrl.tui.run_info import RunInfo
from dagrl.tui.state import RunState
from dagrl.tui.step_graph import StepGraph, alias_notes, pool_headings
from dagrl.tui.text import cells, safe
from dagrl.tui.tree_drawing import draw_tree

_MOST_ALIASES = 2
_MOST_NAME, _TIME, _DETAIL = 24, 14, 21
#: The last that groups which share devices have done to make room for each other.
_PHASES = {
    "sleep": "rollout asleep",
    "wake_weights": "rollout takes weights",
    "wake_kv": "rollout awake",
    "offload_model": "weights offloaded",
    "offload_optimizer": "optimizer offloaded",
    "onload_model": "weights onloaded",
    "onload_optimizer": "optimizer onloaded",
}
_BUSY = ("running", "stalled", "failed")
#: In fewer cells a list has short times and details.
_NARROW, _SHORT_TIME = 60, 8


def dag_panel(state: RunState, info: RunInfo, width: int, height: int, now: float) -> list[Text]:
    """The graph in a box, as a drawing where it fits, else as a list."""
    return box(f"step DAG · {phase(state, info)}", dag_lines(state, info, width - 4, height - 2, now), width, height)


def dag_lines(state: RunState, info: RunInfo, width: int, height: int, now: float) -> list[Text]:
    """The pools, the graph and the aliased calls, in at most ``height`` lines."""
    found = statuses(state, info, now)
    graph = info.graph(shown_pipeline(state, info))
    if graph is None:
        return node_list(state, info, width, height, now)
    heads, tails = _around(graph)
    room = height - len(heads) - len(tails)
    drawn = _drawing(graph, box_labels(found), width, room, found) if _height(graph, width, room) is not None else None
    lines = node_list(state, info, width, height, now) if drawn is None else drawn
    return [*heads, *lines, *tails] if len(lines) <= room else lines


def drawing_height(info: RunInfo, pipeline: str, width: int, height: int) -> int | None:
    """Lines that the drawing of a pipeline takes, in whatever state its nodes are; None if it does not fit."""
    graph = info.graph(pipeline)
    if graph is None:
        return None
    heads, tails = _around(graph)
    needed = _height(graph, width, height - len(heads) - len(tails))
    return None if needed is None else len(heads) + needed + len(tails)


def node_list(state: RunState, info: RunInfo, width: int, height: int, now: float) -> list[Text]:
    """One line for each node; where they do not all fit, those around the running one."""
    found = statuses(state, info, now)
    graph = info.graph(shown_pipeline(state, info))
    labels = _columns(list_labels(found), _TIME, _DETAIL)
    if width < _NARROW:
        labels = _columns(narrow_labels(found), _SHORT_TIME, 0)
    lines = draw_tree(graph, labels, width) if graph is not None else _plain_list(labels, found, width)
    return _window(lines, list(found.values()), height)


def phase(state: RunState, info: RunInfo) -> str:
    """What the walk on screen is for."""
    walk = state.walk
    if walk is None:
        if state.outcome is not None:
            return "no step"
        return "before the first step" if state.started_at is not None else "starting, models are being loaded"
    kind = "train" if walk.pipeline in (state.training, info.training) else f"evaluate ({safe(walk.pipeline)})"
    batch = f", batch {walk.batch}" if walk.batch > 1 else ""
    engine = f", {_PHASES[walk.phase]}" if walk.phase in _PHASES and walk.seconds is None else ""
    return f"{kind}, step {walk.step}{batch}{engine}"


def _around(graph: StepGraph) -> tuple[list[Text], list[Text]]:
    """What stands above and below the graph."""
    heads = [line((text, LABEL)) for text in pool_headings(graph)]
    notes = [line((f"= {text}", LABEL)) for text in alias_notes(graph)[:_MOST_ALIASES]]
    return heads, notes


def _drawing(
    graph: StepGraph, labels: Mapping[str, list[Text]], width: int, height: int, found: Mapping[str, NodeStatus]
) -> list[Text] | None:
    if width < 1 or height < 1:
        return None
    rims = {node: LOOKS[status.state].style for node, status in found.items()}
    return draw(graph, labels, width, height, styles=rims, reserve=RESERVE)


@lru_cache(64)
def _height(graph: StepGraph, width: int, height: int) -> int | None:
    """Lines of a drawing that has room for times and rows; names alone say less than a list does."""
    labels = {node.id: [line("-" * (2 + cells(safe(node.name)))), *[line("#")] * 2] for node in graph.nodes}
    drawn = _drawing(graph, labels, width, height, {})
    if drawn is None or sum("#" in each.plain for each in drawn) < 2:
        return None
    return len(drawn)


def _columns(labels: Mapping[str, list[Text]], time: int, detail: int) -> dict[str, list[Text]]:
    """The names, and what stands behind them in columns as wide for all; details as wide as they are for 0 cells."""
    return {
        node: [head, join(fit(took, time), line("  "), fit(rest, detail) if detail else rest)]
        for node, (head, took, rest) in labels.items()
    }


def _plain_list(labels: Mapping[str, list[Text]], found: Mapping[str, NodeStatus], width: int) -> list[Text]:
    """The nodes of a walk whose plan is not known."""
    name = 2 + min(_MOST_NAME, max((cells(status.name) for status in found.values()), default=0))
    return [fit(join(fit(head, name), line("  "), rest), width) for head, rest in labels.values()]


def _window(lines: list[Text], found: list[NodeStatus], height: int) -> list[Text]:
    """Those around the running one, and in place of the last how many there are besides."""
    if len(lines) <= height or height < 1:
        return lines[: max(0, height)]
    room = max(1, height - 1)
    busy = next((index for index, each in enumerate(found) if each.state in _BUSY), None)
    if busy is None:  # between two nodes: the next one
        busy = next((index for index, each in enumerate(found) if each.state != "done"), 0)
    start = min(max(0, busy - room // 2), len(lines) - room)
    above, below = start, len(lines) - start - room
    told = ", ".join(f"{number} {where}" for number, where in ((above, "above"), (below, "below")) if number)
    return [*lines[start : start + room], line((f"… {told}", LABEL))][:height]
