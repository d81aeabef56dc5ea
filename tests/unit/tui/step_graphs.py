"""Graphs and plans of made-up steps, for the tests of their drawings."""

from collections.abc import Iterable, Sequence

from rich.text import Text

from dagrl.compiler import LOCAL, Plan, RunOp
from dagrl.compiler.plan import GroupPlan, Op, PoolPlan
from dagrl.tui.step_graph import StepGraph, StepNode


def graph_of(edges: Iterable[tuple[int, int]], count: int, pools: Sequence[str] = ("main",)) -> StepGraph:
    """Nodes N00, N01, ..., joined as given."""
    nodes = tuple(StepNode(f"N{i:02}", f"N{i:02}", "run", pools[i % len(pools)]) for i in range(count))
    ordered = sorted(set(edges), key=lambda edge: (edge[1], edge[0]))
    named = tuple((f"N{source:02}", f"N{target:02}") for source, target in ordered)
    return StepGraph(nodes, named, tuple(PoolPlan(pool, (1,)) for pool in pools), (), ())


def labels_of(graph: StepGraph, lines: int = 1) -> dict[str, list[Text]]:
    """A mark and the name, and below it lines that say nothing."""
    return {node.id: [Text(f"* {node.name}"), *[Text("1 ms")] * (lines - 1)] for node in graph.nodes}


def run_op(call: str, after: Sequence[str] = (), **changes: object) -> RunOp:
    """An op that runs a call after others."""
    values: dict[str, object] = {
        "id": call, "call": call, "node": call, "pool": "main", "group": None, "needs": None, "version": None,
        "mutates": False, "source": call, "filters": (), "reads": (), "writes": (), "aliases": {}, "options": {},
        "after": tuple(after), "at": "file.py:3",
    }  # fmt: skip
    return RunOp(**{**values, **changes})


def plan_of(*ops: Op, pipeline: str = "p", pools: Sequence[str] = ("main",), groups: Sequence[GroupPlan] = ()) -> Plan:
    """A plan of ops on pools of one process each."""
    return Plan(pipeline, LOCAL, tuple(PoolPlan(pool, (1,)) for pool in pools), tuple(groups), ops, {}, {}, {})
