"""The plan: what runs in one step, in which order and why; frozen, and canonical as JSON."""

import json
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import asdict, dataclass, replace
from typing import Any, Literal

from dagrl.compiler.machine import Machine

FORMAT = 1


@dataclass(frozen=True)
class Input:
    """A column that a call reads, and the call and column it comes from."""

    column: str
    type: str
    call: str
    source: str


@dataclass(frozen=True)
class CanaryPlan:
    """How far, in nats, the log-probs of the worker group that has drawn an update's rows may be from the trainer's."""

    rollout: str
    tolerance: float


@dataclass(frozen=True)
class RunOp:
    """Run one call.

    ``pool`` names the processes that run it; ``version`` is how many times the group's weights have changed in this
    step before it; ``filters``, calls or loops, decide its rows; ``writes`` are the columns kept for readers;
    ``aliases`` maps a column that a loss reads to the engine output that stands in for it. ``prepares`` are the loss
    terms that compute something over each whole mini-batch first, and ``prepare_forward`` says whether that takes a
    forward pass. A ``canary`` is that of an update whose rows were drawn from the weights that it begins with.
    """

    id: str
    call: str
    node: str
    pool: str
    group: str | None
    needs: str | None
    version: int | None
    mutates: bool
    source: str
    filters: tuple[str, ...]
    reads: tuple[Input, ...]
    writes: tuple[str, ...]
    aliases: Mapping[str, str]
    options: Mapping[str, str]
    after: tuple[str, ...]
    at: str
    kind: str = "run"
    prepares: tuple[str, ...] = ()
    prepare_forward: bool = False
    canary: CanaryPlan | None = None


@dataclass(frozen=True)
class SyncOp:
    """Bring the group's rollout weights to ``version`` of ``source``: the group itself, or the one that it follows.

    ``source_pool`` are the processes that hold those weights; they and those of ``pool`` take part.
    """

    id: str
    pool: str
    group: str
    version: int
    after: tuple[str, ...]
    kind: str = "sync"
    source: str = ""
    source_pool: str = ""

    @property
    def is_own(self) -> bool:
        """Whether the weights are the group's own."""
        return self.source in ("", self.group)


#: What a phase op does with a group's rollout engine, or with what the group trains.
Action = Literal[
    "sleep", "wake_weights", "wake_kv", "offload_model", "offload_optimizer", "onload_model", "onload_optimizer"
]


@dataclass(frozen=True)
class PhaseOp:
    """Have the rollout engine of a group sleep, so that training has its memory, or wake its weights or KV cache.

    Or the other way round: what the group trains goes to the host's memory, or comes back. ``level`` is how deep an
    engine sleeps: at 1 it keeps its weights outside the accelerator, at 2 it drops them, since a sync brings new ones
    before it generates.
    """

    id: str
    pool: str
    group: str
    action: Action
    after: tuple[str, ...]
    kind: str = "phase"
    level: int = 1


@dataclass(frozen=True)
class FreeOp:
    """Let go of columns that nobody reads any more."""

    id: str
    columns: tuple[str, ...]
    after: tuple[str, ...]
    kind: str = "free"


@dataclass(frozen=True)
class LoopOp:
    """Run ``ops`` round after round until ``groups`` groups have passed ``filters``, ``max_rounds`` times at most.

    A round reads the next rows of ``source``. The ops wait only for each other; what any of them needs from outside is
    in ``after``. ``keeps`` are the columns, as ``call.column``, that are there afterwards for later readers, of the
    rows that the loop lets pass; all else is let go after each round. Later ops name the loop among their filters.
    """

    id: str
    source: str
    groups: int
    max_rounds: int
    filters: tuple[str, ...]
    keeps: tuple[str, ...]
    ops: tuple[RunOp, ...]
    after: tuple[str, ...]
    at: str
    kind: str = "loop"

    @property
    def last(self) -> tuple[str, ...]:
        """The ops that no other op of the loop waits for."""
        awaited = {name for op in self.ops for name in op.after}
        return tuple(op.id for op in self.ops if op.id not in awaited)


Op = RunOp | SyncOp | PhaseOp | FreeOp | LoopOp


@dataclass(frozen=True)
class GroupPlan:
    """A worker group that the step uses; ``parallel`` is how its processes hold the model: none if there is one.

    ``role`` is what its workers are: a Policy, a Critic, a RewardModel. ``rollout`` is the engine that draws its
    responses: none if it does not generate. ``follows`` is the group whose trained weights it generates from, where
    that is another.
    """

    name: str
    model: str
    pool: str
    trains: bool
    precision: str
    parallel: Literal["none", "replicate", "fsdp"] = "none"
    role: str = "Policy"
    rollout: str = "none"
    follows: str | None = None


@dataclass(frozen=True)
class PoolPlan:
    """Processes, by node, that run ops of the step; worker groups on one pool share them."""

    name: str
    process_on_nodes: tuple[int, ...]

    @property
    def num_processes(self) -> int:
        """All of them."""
        return sum(self.process_on_nodes)


@dataclass(frozen=True)
class Plan:
    """One pipeline, planned for one machine. ``ops`` are in an order that respects every ``after``."""

    pipeline: str
    machine: Machine
    pools: tuple[PoolPlan, ...]
    groups: tuple[GroupPlan, ...]
    ops: tuple[Op, ...]
    pruned: Mapping[str, str]
    aliased: Mapping[str, str]
    kept: Mapping[str, str]
    format: int = FORMAT

    @property
    def runs(self) -> tuple[RunOp, ...]:
        """The ops that run calls, those of loops included."""
        return tuple(op for op in opened(self.ops) if isinstance(op, RunOp))

    @property
    def loops(self) -> tuple[LoopOp, ...]:
        """The ops that repeat others."""
        return tuple(op for op in self.ops if isinstance(op, LoopOp))

    def to_dict(self) -> dict[str, Any]:
        """Plain dicts, lists, strings and numbers."""
        return asdict(self)

    def to_json(self) -> str:
        """Canonical JSON: sorted keys, two spaces."""
        return json.dumps(self.to_dict(), indent=2, sort_keys=True, ensure_ascii=False)


def opened(ops: Iterable[Op]) -> Iterator[Op]:
    """The ops with those of loops in their place: they wait for what their loop waits for, and it then for them."""
    for op in ops:
        if not isinstance(op, LoopOp):
            yield op
            continue
        yield from (replace(inner, after=(*inner.after, *op.after)) for inner in op.ops)
        yield replace(op, after=op.last)


def plan_from_dict(data: Mapping[str, Any]) -> Plan:
    """The plan that ``to_dict`` wrote."""
    ops = tuple(_op_from_dict(op) for op in data["ops"])
    given = data["machine"]
    machine = Machine(given["executor"], tuple(given["process_on_nodes"]), given["limit"], given.get("gpus", False))
    pools = tuple(PoolPlan(pool["name"], tuple(pool["process_on_nodes"])) for pool in data["pools"])
    groups = tuple(GroupPlan(**group) for group in data["groups"])
    decisions = (data["pruned"], data["aliased"], data["kept"])
    return Plan(data["pipeline"], machine, pools, groups, ops, *decisions, data["format"])


def _op_from_dict(data: Mapping[str, Any]) -> Op:
    fields: dict[str, Any] = {name: tuple(v) if isinstance(v, list) else v for name, v in data.items()}
    if data["kind"] == "run":
        fields["reads"] = tuple(Input(**read) for read in data["reads"])
        if data.get("canary") is not None:  # a plan of an earlier version says nothing of it
            fields["canary"] = CanaryPlan(**data["canary"])
        return RunOp(**fields)
    if data["kind"] == "loop":
        inner = (_op_from_dict(op) for op in data["ops"])
        fields["ops"] = tuple(op for op in inner if isinstance(op, RunOp))
        return LoopOp(**fields)
    kinds: dict[str, type[SyncOp | PhaseOp | FreeOp]] = {"sync": SyncOp, "phase": PhaseOp, "free": FreeOp}
    return kinds[data["kind"]](**fields)
