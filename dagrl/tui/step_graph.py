"""A plan as a graph to draw: its ops, which of them wait for which, and where each one runs."""

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from functools import cached_property
from typing import Literal, Self

from dagrl.compiler.plan import FreeOp, LoopOp, Op, Plan, PoolPlan, RunOp, SyncOp, opened
from dagrl.errors import counted
from dagrl.tui.text import cut, safe

_NAME_CELLS = 40


@dataclass(frozen=True)
class StepNode:
    """An op of the step; ``name`` is as the plan has it, ``writes`` counts its columns.

    ``syncs`` are groups whose rollout weights are brought up to date right after it, with no op of the step waiting. A
    loop stands behind the nodes of its rounds: it is what later nodes wait for; ``limits`` are its groups and rounds.
    """

    id: str
    name: str
    kind: Literal["run", "sync", "loop"]
    pool: str
    group: str | None = None
    needs: str | None = None
    version: int | None = None
    mutates: bool = False
    writes: int = 0
    syncs: tuple[str, ...] = ()
    limits: tuple[int, int] = (0, 0)


@dataclass(frozen=True)
class StepGraph:
    """``nodes`` in the order of the plan; ``edges`` (source, target) without those that others imply.

    ``aliased`` are calls that are not run, and the op whose own forward pass gives what they would write.
    """

    nodes: tuple[StepNode, ...]
    edges: tuple[tuple[str, str], ...]
    pools: tuple[PoolPlan, ...]
    groups: tuple[tuple[str, str], ...]
    aliased: tuple[tuple[str, str], ...]

    @classmethod
    def from_plan(cls, plan: Plan) -> Self:
        """The graph of the plan's ops; what frees columns is left out, so is a sync that no op waits for."""
        ops = tuple(opened(plan.ops))
        awaited = {parent for op in ops for parent in op.after if not isinstance(op, FreeOp)}
        shown = [op for op in ops if isinstance(op, RunOp | LoopOp) or (isinstance(op, SyncOp) and op.id in awaited)]
        folded = [op for op in ops if isinstance(op, SyncOp) and op.id not in awaited]
        return cls(
            nodes=tuple(_node(op, folded) for op in shown),
            edges=tuple(_needed_edges(ops, {op.id for op in shown})),
            pools=plan.pools,
            groups=tuple((group.name, group.pool) for group in plan.groups),
            aliased=tuple((call, _provider(plan, reason)) for call, reason in plan.aliased.items()),
        )

    @cached_property
    def parents(self) -> Mapping[str, tuple[str, ...]]:
        """The sources of the edges into each node, in the order of the plan."""
        return {node.id: tuple(source for source, target in self.edges if target == node.id) for node in self.nodes}

    @cached_property
    def children(self) -> Mapping[str, tuple[str, ...]]:
        """The targets of the edges out of each node, in the order of the plan."""
        return {node.id: tuple(target for source, target in self.edges if source == node.id) for node in self.nodes}

    @cached_property
    def numbered_edges(self) -> tuple[tuple[int, int], ...]:
        """The edges by places in ``nodes``."""
        place = {node.id: index for index, node in enumerate(self.nodes)}
        return tuple((place[source], place[target]) for source, target in self.edges)

    def pool_tag(self, node: StepNode) -> str:
        """Where the node runs, when the step has more than one pool; else nothing."""
        return f" @{cut(safe(node.pool), 12)}" if len(self.pools) > 1 else ""


def pool_headings(graph: StepGraph) -> list[str]:
    """One line for each pool: its name, its processes and the worker groups that share it."""
    return [_heading(pool, [group for group, where in graph.groups if where == pool.name]) for pool in graph.pools]


def alias_notes(graph: StepGraph) -> list[str]:
    """One line for each call that is not run because another op's forward pass gives the same."""
    return [f"{_short(call)} = {_short(source)}'s own forward (alias)" for call, source in graph.aliased]


def _heading(pool: PoolPlan, groups: list[str]) -> str:
    count = pool.num_processes
    processes = [counted(count, "process", "processes")] if count else []
    shared = [", ".join(map(_short, groups)) + (" colocated" if len(groups) > 1 else "")] if groups else []
    return " · ".join([f"{_short(pool.name)} pool", *processes, *shared])


def _short(name: str) -> str:
    return cut(safe(name), _NAME_CELLS)


def _node(op: RunOp | SyncOp | LoopOp, folded: list[SyncOp]) -> StepNode:
    if isinstance(op, LoopOp):
        return StepNode(op.id, op.id, "loop", op.ops[-1].pool, limits=(op.groups, op.max_rounds))
    if isinstance(op, SyncOp):
        return StepNode(op.id, f"sync {op.group}", "sync", op.pool, op.group, version=op.version)
    syncs = tuple(sync.group for sync in folded if op.id in sync.after)
    return StepNode(
        op.id, op.call, "run", op.pool, op.group, op.needs, op.version, op.mutates, len(op.writes), syncs
    )  # fmt: skip


def _provider(plan: Plan, reason: str) -> str:
    """The op that the reason of an alias names."""
    return next((op.call for op in plan.runs if op.aliases and f"`{op.call}`" in reason), "another op")


def _needed_edges(ops: tuple[Op, ...], shown: set[str]) -> Iterator[tuple[str, str]]:
    """(source, target) between shown ops, without those that a longer way implies; hidden ops are skipped through."""
    sources: dict[str, set[str]] = {}
    before: dict[str, set[str]] = {}
    for op in ops:
        direct: set[str] = set()
        for parent in op.after:
            direct |= {parent} if parent in shown else sources[parent]
        implied = set[str]().union(*(before[parent] for parent in direct))
        sources[op.id] = direct - implied
        before[op.id] = direct | implied
        if op.id in shown:
            yield from ((one.id, op.id) for one in ops if one.id in sources[op.id])
