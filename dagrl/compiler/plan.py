"""The plan: what runs in one step, in which order and why; frozen, and canonical as JSON."""

import json
from collections.abc import Mapping
from dataclasses import asdict, dataclass
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
class RunOp:
    """Run one call.

    ``pool`` names the processes that run it; ``version`` is how many times the group's weights have changed in this
    step before it; ``filters`` decide its rows; ``writes`` are the columns kept for readers; ``aliases`` maps a column
    that a loss reads to the engine output that stands in for it.
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


@dataclass(frozen=True)
class SyncOp:
    """Bring the group's rollout weights to ``version``."""

    id: str
    pool: str
    group: str
    version: int
    after: tuple[str, ...]
    kind: str = "sync"


@dataclass(frozen=True)
class FreeOp:
    """Let go of columns that nobody reads any more."""

    id: str
    columns: tuple[str, ...]
    after: tuple[str, ...]
    kind: str = "free"


Op = RunOp | SyncOp | FreeOp


@dataclass(frozen=True)
class GroupPlan:
    """A worker group that the step uses; ``parallel`` is how its processes hold the model: none if there is one.

    ``role`` is what its workers are: a Policy, a Critic, a RewardModel.
    """

    name: str
    model: str
    pool: str
    trains: bool
    precision: str
    parallel: Literal["none", "replicate", "fsdp"] = "none"
    role: str = "Policy"


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
        """The ops that run calls."""
        return tuple(op for op in self.ops if isinstance(op, RunOp))

    def to_dict(self) -> dict[str, Any]:
        """Plain dicts, lists, strings and numbers."""
        return asdict(self)

    def to_json(self) -> str:
        """Canonical JSON: sorted keys, two spaces."""
        return json.dumps(self.to_dict(), indent=2, sort_keys=True, ensure_ascii=False)


def plan_from_dict(data: Mapping[str, Any]) -> Plan:
    """The plan that ``to_dict`` wrote."""
    ops = tuple(_op_from_dict(op) for op in data["ops"])
    given = data["machine"]
    machine = Machine(given["executor"], tuple(given["process_on_nodes"]), given["limit"])
    pools = tuple(PoolPlan(pool["name"], tuple(pool["process_on_nodes"])) for pool in data["pools"])
    groups = tuple(GroupPlan(**group) for group in data["groups"])
    decisions = (data["pruned"], data["aliased"], data["kept"])
    return Plan(data["pipeline"], machine, pools, groups, ops, *decisions, data["format"])


def _op_from_dict(data: Mapping[str, Any]) -> Op:
    fields: dict[str, Any] = {name: tuple(v) if isinstance(v, list) else v for name, v in data.items()}
    if data["kind"] == "run":
        fields["reads"] = tuple(Input(**read) for read in data["reads"])
        return RunOp(**fields)
    return SyncOp(**fields) if data["kind"] == "sync" else FreeOp(**fields)
