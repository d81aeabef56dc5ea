"""What each node of the walk on screen is doing, how far it is, and what it waits for."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from dagrl.tui.glyphs import State
from dagrl.tui.run_info import RunInfo
from dagrl.tui.state import RunState
from dagrl.tui.step_graph import StepGraph, StepNode
from dagrl.tui.text import safe
from dagrl.tui.walk_state import Loop, OpRun, Progress, Walk

#: Stalled is what runs for so many times as long as usual, and for so many seconds at least.
STALLED_TIMES = 3.0
_STALLED_SECONDS = 1.0
#: From so many runs on there is a usual time to compare with.
_KNOWN_RUNS = 3


@dataclass(frozen=True, slots=True)
class NodeStatus:
    """A node: ``seconds`` it took, or runs for so far; ``usual`` ones; rows and tokens of its last run.

    ``waits_for`` are the nodes that must be done before it, ``waits_for_all`` tells that none of them is yet, and
    ``turn_of`` is the one that holds the processes that it needs.
    """

    name: str
    state: State
    seconds: float | None = None
    usual: float | None = None
    rows: int = 0
    tokens: int = 0
    progress: Progress | None = None
    waits_for: tuple[str, ...] = ()
    waits_for_all: bool = False
    turn_of: str | None = None
    slowest: str = ""


def shown_pipeline(state: RunState, info: RunInfo) -> str:
    """The pipeline whose walk is on screen: the running or last one, before the first the training one."""
    if state.walk is not None:
        return state.walk.pipeline
    return state.training or info.training


def statuses(state: RunState, info: RunInfo, now: float) -> dict[str, NodeStatus]:
    """The status of each node of the walk on screen, in the order of its plan."""
    pipeline = shown_pipeline(state, info)
    graph = info.graph(pipeline)
    walk = state.walk
    if graph is None:
        names = list(walk.ops) if walk is not None else []
        return {name: _of_run(name, walk.ops[name], state, walk, now) for name in names if walk is not None}
    done = {node.id for node in graph.nodes if _is_done(node, walk, graph)}
    return {node.id: _status(node, graph, done, state, walk, now) for node in graph.nodes}


def waiting_for(statuses: Mapping[str, NodeStatus], name: str) -> list[str]:
    """The names of the nodes that wait for one."""
    return [each.name for each in statuses.values() if name in each.waits_for or each.turn_of == name]


def _status(
    node: StepNode, graph: StepGraph, done: set[str], state: RunState, walk: Walk | None, now: float
) -> NodeStatus:
    name = _shown_name(node, walk)
    run = walk.run_of(node.id) if walk is not None else None
    if walk is not None and run is not None:
        return _of_run(node.id, run, state, walk, now, name)
    usual = state.usual(walk.pipeline, node.id) if walk is not None else None
    if node.id in done:
        return NodeStatus(name, "done", usual=usual)
    if walk is None or walk.seconds is not None or state.outcome is not None:
        return NodeStatus(name, "waiting", usual=usual)
    if node.kind == "loop" and node.id in walk.loops:
        return _of_loop(name, walk.loops[node.id], now)
    missing = tuple(_name(graph, parent) for parent in graph.parents[node.id] if parent not in done)
    if missing:
        waits_for_all = len(missing) == len(graph.parents[node.id])
        return NodeStatus(name, "waiting", usual=usual, waits_for=missing, waits_for_all=waits_for_all)
    holder = next((each for each in graph.nodes if each.pool == node.pool and _is_running(each, walk)), None)
    if holder is None and node.kind == "sync":
        return NodeStatus(name, "running", usual=usual)
    return NodeStatus(name, "queued", usual=usual, turn_of=safe(holder.name) if holder is not None else None)


def _shown_name(node: StepNode, walk: Walk | None) -> str:
    """The name, of a loop with the round that it is in."""
    loop = walk.loops.get(node.id) if walk is not None else None
    return safe(node.name) if loop is None else f"{safe(node.name)} {loop.round}/{loop.max_rounds}"


def _of_loop(name: str, loop: Loop, now: float) -> NodeStatus:
    """A loop while a round runs: how many groups the rounds before have brought."""
    passed = Progress(loop.groups_passed, loop.groups, "groups")
    return NodeStatus(name, "running", max(0.0, now - loop.started_at), progress=passed)


def _name(graph: StepGraph, node: str) -> str:
    return next(safe(each.name) for each in graph.nodes if each.id == node)


def _of_run(op: str, run: OpRun, state: RunState, walk: Walk, now: float, name: str = "") -> NodeStatus:
    usual = state.usual(walk.pipeline, op)
    shown: State = run.state
    seconds = run.seconds
    if run.state == "running":
        end = state.ended_at if state.ended_at is not None else now
        seconds = max(0.0, end - run.started_at)
        known = usual if state.times_run(walk.pipeline, op) >= _KNOWN_RUNS else None
        is_late = known is not None and seconds > max(STALLED_TIMES * known, _STALLED_SECONDS)
        shown = "waiting" if state.outcome is not None else "stalled" if is_late else "running"
    progress = _in_all(run) if run.state == "running" else None
    return NodeStatus(
        name or safe(op), shown, seconds, usual, run.rows, run.tokens, progress, slowest=_slowest(run)
    )  # fmt: skip


def _in_all(run: OpRun) -> Progress | None:
    """The progress of all ranks together."""
    ranks = list(run.progress.values())
    if not ranks:
        return None
    unit = safe(ranks[0].unit)
    return Progress(sum(each.done for each in ranks), sum(each.total for each in ranks), unit)


def _slowest(run: OpRun) -> str:
    """The rank that is furthest behind, where there are several and they differ."""
    if len(run.progress) < 2 or len({each.done for each in run.progress.values()}) == 1:
        return ""
    rank, progress = min(run.progress.items(), key=lambda item: item[1].done / max(1, item[1].total))
    return f"rank {rank} is at {progress.done}/{progress.total}"


def _is_done(node: StepNode, walk: Walk | None, graph: StepGraph) -> bool:
    if walk is None:
        return False
    if node.kind == "loop":
        return node.id in walk.loops and all(_has_run(op, walk) for op in walk.loops[node.id].ops)
    if node.kind == "run":
        return _has_run(node.id, walk)
    earlier = [each.id for each in graph.nodes if each.kind == "sync" and each.group == node.group]
    return sum(sync.group == node.group for sync in walk.syncs) > earlier.index(node.id)


def _has_run(op: str, walk: Walk) -> bool:
    run = walk.run_of(op)
    return run is not None and run.state == "done"


def _is_running(node: StepNode, walk: Walk) -> bool:
    run = walk.run_of(node.id)
    return run is not None and run.state == "running"
