"""Phase pass: when rollout engines that share processes with training sleep and wake, with few switches.

Only an engine that can sleep has phases, and only where its processes also run calls on training weights. On such a
pool the ops take turns: one that fits the present phase comes before one that needs a switch, as far as data allows.
What phase a step finds is not known (another pipeline may have run before), and waking what is awake changes nothing,
so each plan switches before its first op. A loop is of the rollout phase, whatever its rounds score.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace

from dagrl.compiler.plan import Action, FreeOp, LoopOp, Op, PhaseOp, RunOp, SyncOp
from dagrl.graph.pipeline import Pipeline
from dagrl.graph.specs import WorkerGroup

#: The engines that give memory back.
SLEEPING_ENGINES = frozenset({"vllm"})


@dataclass
class _Pool:
    """The phases of one pool as the pass walks on: what of each engine is awake; None as long as it is not known."""

    name: str
    awake: dict[str, frozenset[str] | None]
    #: The last switch, and what has used the pool since then.
    switch: str | None = None
    users: list[str] = field(default_factory=list[str])

    def switches(self, op: Op) -> list[tuple[str, Action]]:
        """What must change before the op, as (group, action)."""
        wanted = _wanted(op, self)
        slept = [(group, "sleep") for group in self.awake if wanted.get(group) == frozenset() != self.awake[group]]
        woken = [
            (group, action)
            for action, part in _PARTS.items()
            for group, parts in wanted.items()
            if part in parts and part not in (self.awake[group] or ())
        ]
        return [*slept, *woken]  # pyright: ignore[reportReturnType] - the actions are literals


_PARTS: Mapping[Action, str] = {"wake_weights": "weights", "wake_kv": "kv_cache"}
_ALL = frozenset(_PARTS.values())


def sleeping_groups(pipelines: Sequence[Pipeline], groups: Sequence[WorkerGroup]) -> tuple[WorkerGroup, ...]:
    """Those of the groups that generate whose engine sleeps while other calls of the run have its processes."""
    calls = [call for pipeline in pipelines for call in pipeline.calls]
    train = {call.group.pool.name for call in calls if call.group is not None and call.contract.needs != "rollout"}
    return tuple(
        group for group in groups if group.model.rollout.engine in SLEEPING_ENGINES and group.pool.name in train
    )


def with_phases(ops: Sequence[Op], groups: Sequence[WorkerGroup]) -> list[Op]:
    """The ops with those that switch the phases of the groups, which are those that sleep in the run."""
    pools: dict[str, _Pool] = {}
    for group in groups:
        pools.setdefault(group.pool.name, _Pool(group.pool.name, {})).awake[group.name] = None
    return _with_levels(list(_scheduled(list(ops), pools))) if pools else list(ops)


def _wanted(op: Op, pool: _Pool) -> dict[str, frozenset[str]]:
    """The parts of each engine that an op wants awake, none for one that must sleep; others may be as they are."""
    match op:
        case LoopOp():
            own = {inner.group for inner in op.ops if inner.pool == pool.name and inner.needs == "rollout"}
            scores = any(inner.pool == pool.name and inner.group is not None for inner in op.ops)
            return {group: _ALL if group in own else frozenset() for group in pool.awake} if scores else {}
        case RunOp() if op.group is not None and op.pool == pool.name:
            return {group: _ALL if (group, "rollout") == (op.group, op.needs) else frozenset() for group in pool.awake}
        case SyncOp() if op.group in pool.awake:
            return {op.group: frozenset({"weights"})}
        case _:
            return {}


def _scheduled(waiting: list[Op], pools: Mapping[str, _Pool]) -> Iterator[Op]:
    """The ops in an order with few switches, and the switches; later ops of a pool wait for its last switch."""
    done: set[str] = set()
    while waiting:
        ready = [op for op in waiting if done.issuperset(op.after)]
        op = next((op for op in ready if not any(pool.switches(op) for pool in pools.values())), ready[0])
        waiting.remove(op)
        done.add(op.id)
        for pool in pools.values():
            yield from _switched(pool, op)
        yield _waiting_for_switches(op, pools)


def _switched(pool: _Pool, op: Op) -> Iterator[PhaseOp]:
    """Switch the phase as the op wants it, after all that used the pool in the phase before."""
    for group, action in pool.switches(op):
        last: list[str] = [] if pool.switch is None else [pool.switch]
        before = tuple(dict.fromkeys([*pool.users, *last]))
        pool.switch, pool.users = f"{action}:{group}:{op.id}", []
        parts = pool.awake[group] or frozenset()
        pool.awake[group] = frozenset() if action == "sleep" else parts | {_PARTS[action]}
        yield PhaseOp(pool.switch, pool.name, group, action, before)


def _waiting_for_switches(op: Op, pools: Mapping[str, _Pool]) -> Op:
    after = list(op.after)
    for pool in pools.values():
        if _wanted(op, pool):
            pool.users.append(op.id)
            after += [pool.switch] if pool.switch is not None else []
    return op if isinstance(op, FreeOp) else replace(op, after=tuple(dict.fromkeys(after)))


def _with_levels(ops: list[Op]) -> list[Op]:
    """Engines whose next use is a sync need not keep their weights: they sleep at level 2."""
    for place, op in enumerate(ops):
        if isinstance(op, PhaseOp) and op.action == "sleep":
            later = (other for other in ops[place + 1 :] if isinstance(other, SyncOp | RunOp | LoopOp))
            first = next((other for other in later if _uses(other, op.group)), None)
            ops[place] = replace(op, level=2 if isinstance(first, SyncOp) else 1)
    return ops


def _uses(op: SyncOp | RunOp | LoopOp, group: str) -> bool:
    if isinstance(op, SyncOp):
        return op.group == group
    return any(
        inner.group == group and inner.needs == "rollout" for inner in (op.ops if isinstance(op, LoopOp) else (op,))
    )
