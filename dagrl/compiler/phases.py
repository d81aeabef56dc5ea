"""Phase pass: what of the groups that share processes is in memory when, with few switches.

A rollout engine that can sleep has phases where its processes also run calls on training weights; a group that is
offloaded starts away from its device and comes for its own calls. On such a pool the ops take turns: one that
fits the present phase comes before one that needs a switch, as far as data allows. What phase a step finds is not known
(another pipeline may have run before), and bringing what is there changes nothing, so each plan switches before its
first op. A loop is of the rollout phase, whatever its rounds score.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import NamedTuple

from dagrl.compiler.plan import Action, FreeOp, LoopOp, Op, PhaseOp, RunOp, SyncOp
from dagrl.graph.pipeline import Call
from dagrl.graph.specs import WorkerGroup

#: The engines that give memory back.
SLEEPING_ENGINES = frozenset({"vllm"})

_ENGINE = ("weights", "kv_cache")
#: What brings each part, in the order in which parts come, and what takes it away.
_COMES: Mapping[str, Action] = {
    "model": "onload_model",
    "weights": "wake_weights",
    "kv_cache": "wake_kv",
    "optimizer": "onload_optimizer",
}
_GOES: Mapping[str, Action] = {
    "optimizer": "offload_optimizer",
    "model": "offload_model",
    "weights": "sleep",
    "kv_cache": "sleep",
}

#: A group and a part of what it holds.
Part = tuple[str, str]


class PhasedGroups(NamedTuple):
    """The groups of a run that switch phases: those whose engine sleeps, and those whose training is offloaded."""

    sleeping: tuple[WorkerGroup, ...] = ()
    offloaded: tuple[WorkerGroup, ...] = ()


@dataclass
class _Pool:
    """The phases of one pool as the pass walks on: whether each part is there; None as long as it is not known."""

    name: str
    groups: dict[str, WorkerGroup] = field(default_factory=dict[str, WorkerGroup])
    here: dict[Part, bool | None] = field(default_factory=dict[Part, bool | None])
    #: The last switch, and what has used the pool since then.
    switch: str | None = None
    users: list[str] = field(default_factory=list[str])

    def switches(self, op: Op) -> list[tuple[str, Action]]:
        """What must change before the op, as (group, action)."""
        wanted = _wanted(op, self)
        gone: list[tuple[str, Action]] = [
            (group, action)
            for part, action in _GOES.items()
            for group in self.groups
            if wanted.get((group, part)) is False and self.here[group, part] is not False
        ]
        come: list[tuple[str, Action]] = [
            (group, action)
            for part, action in _COMES.items()
            for group in self.groups
            if wanted.get((group, part)) and not self.here[group, part]
        ]
        return [*dict.fromkeys(gone), *come]

    def switched(self, group: str, action: Action) -> None:
        """Note what the action has brought or taken away."""
        self.here |= {(group, part): True for part, brings in _COMES.items() if brings == action}
        self.here |= {(group, part): False for part, takes in _GOES.items() if takes == action}


def phased_groups(calls: Sequence[Call], rollout_groups: Sequence[WorkerGroup]) -> PhasedGroups:
    """Those of the groups of a run's live calls that switch phases, of which ``rollout_groups`` generate."""
    groups = {call.group.name: call.group for call in calls if call.group is not None}
    train = {call.group.pool.name for call in calls if call.group is not None and call.contract.needs != "rollout"}
    sleeping = [
        group for group in rollout_groups if group.model.rollout.engine in SLEEPING_ENGINES and group.pool.name in train
    ]
    offloaded = [group for group in groups.values() if group.model.offload and group.follows is None]
    return PhasedGroups(tuple(sleeping), tuple(offloaded))


def with_phases(ops: Sequence[Op], phased: PhasedGroups) -> list[Op]:
    """The ops with those that switch the phases of the groups."""
    pools: dict[str, _Pool] = {}
    for group in phased.sleeping:
        _add(pools, group, _ENGINE)
    for group in phased.offloaded:
        _add(pools, group, ("model",) if group.model.optimizer is None else ("model", "optimizer"))
    return _with_levels(list(_scheduled(list(ops), pools))) if pools else list(ops)


def _add(pools: dict[str, _Pool], group: WorkerGroup, parts: Sequence[str]) -> None:
    pool = pools.setdefault(group.pool.name, _Pool(group.pool.name))
    pool.groups[group.name] = group
    pool.here |= {(group.name, part): None for part in parts}


def _wanted(op: Op, pool: _Pool) -> dict[Part, bool]:
    """The parts that an op wants there, and those that it wants away; the others may be as they are."""
    match op:
        case LoopOp():
            inner = [one for one in op.ops if one.pool == pool.name and one.group is not None]
            return _only({part for one in inner for part in _used(one, pool)}, pool) if inner else {}
        case RunOp() if op.group is not None and op.pool == pool.name:
            wanted = _only(_used(op, pool), pool)
            # Which of its own it does not use may stay: the update needs both soon.
            kept = {(op.group, "optimizer")} if op.needs != "rollout" and not op.mutates else set[Part]()
            return {part: there for part, there in wanted.items() if part not in kept}
        case SyncOp():
            return _wanted_by_sync(op, pool)
        case _:
            return {}


def _only(used: set[Part], pool: _Pool) -> dict[Part, bool]:
    return {part: part in used for part in pool.here}


def _used(op: RunOp, pool: _Pool) -> set[Part]:
    """The parts that a call on a group computes with."""
    group = op.group or ""
    if op.needs != "rollout":
        return {(group, "model"), *([(group, "optimizer")] if op.mutates else [])}
    # In fp32 `hf` may generate from the trained weights themselves, in bf16 from a copy.
    model = pool.groups[group].model if group in pool.groups else None
    own = model is not None and (model.rollout.engine, model.precision) == ("hf", "fp32")
    return {(group, part) for part in (*_ENGINE, *(["model"] if own else []))}


def _wanted_by_sync(op: SyncOp, pool: _Pool) -> dict[Part, bool]:
    """New weights go from the trained ones into an engine whose cache need not be there, and nothing else."""
    source, at = op.source or op.group, op.source_pool or op.pool
    if pool.name not in (op.pool, at):
        return {}
    used = {(source, "model"), (op.group, "weights")} & pool.here.keys()
    away = {part for part in pool.here if part[1] in ("model", "optimizer")} - used
    return dict.fromkeys(used, True) | dict.fromkeys(away, False) if used else {}


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
        pool.switched(group, action)
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
