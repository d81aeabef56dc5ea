"""One walk through a plan as its events tell it: which ops run, are done or failed, and since when."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Literal

from dagrl.executor.events import (
    OpFailed,
    OpFinished,
    OpProgressed,
    OpStarted,
    PhaseSwitched,
    RoundStarted,
    WeightsSynced,
)
from dagrl.tui.formats import is_number

#: Ops of one walk that are kept; a plan has fewer, a damaged log may not.
_MOST_OPS = 512


@dataclass(frozen=True, slots=True)
class Progress:
    """How far a rank is in an op."""

    done: int
    total: int
    unit: str


@dataclass(slots=True)
class OpRun:
    """An op of a walk, in its last batch: an evaluation runs it once for each."""

    started_at: float
    state: Literal["running", "done", "failed"] = "running"
    ended_at: float | None = None
    seconds: float = 0.0
    rows: int = 0
    tokens: int = 0
    progress: dict[int, Progress] = field(default_factory=dict[int, Progress])


@dataclass(frozen=True, slots=True)
class Sync:
    """Weights of a group that were brought to its rollout."""

    group: str
    started_at: float
    ended_at: float


@dataclass(frozen=True, slots=True)
class Switch:
    """A rollout engine that went to sleep, or a part of it that woke."""

    action: str
    started_at: float
    ended_at: float


@dataclass(frozen=True, slots=True)
class Loop:
    """The present round of a loop, and when the first one began."""

    started_at: float
    round: int
    max_rounds: int
    groups_passed: int
    groups: int
    ops: tuple[str, ...]


@dataclass(slots=True)
class Walk:
    """A walk: of which pipeline and step, and what its ops did; ``seconds`` once it is over."""

    pipeline: str
    step: int
    started_at: float
    ops: dict[str, OpRun] = field(default_factory=dict[str, OpRun])
    syncs: list[Sync] = field(default_factory=list[Sync])
    switches: dict[str, Switch] = field(default_factory=dict[str, Switch])
    loops: dict[str, Loop] = field(default_factory=dict[str, Loop])
    seconds: float | None = None
    ended_at: float | None = None
    batch: int = 1
    begun: set[str] = field(default_factory=set[str])

    def op_started(self, event: OpStarted) -> None:
        """An op begins; one that was over already begins another batch, in which nothing else has run yet."""
        if event.op in self.begun and self.ops[event.op].state != "running":
            self.batch += 1
            self.begun.clear()
            self.syncs.clear()
            self.switches.clear()
            self.loops.clear()
        run = self._run(event.op, event.at)
        run.started_at, run.state, run.ended_at = event.at, "running", None
        run.progress.clear()

    def round_started(self, event: RoundStarted) -> None:
        """A loop begins a round, in which none of its ops has run yet."""
        self.begun.difference_update(event.ops)
        known = self.loops.get(event.loop)
        if known is not None or len(self.loops) < _MOST_OPS:
            self.loops[event.loop] = Loop(
                event.at if known is None else known.started_at,
                event.round,
                event.max_rounds,
                event.groups_passed,
                event.groups,
                event.ops,
            )

    def op_finished(self, event: OpFinished) -> None:
        """An op is done."""
        seconds = event.seconds if is_number(event.seconds) else 0.0
        run = self._run(event.op, event.at - seconds)
        run.state, run.ended_at = "done", event.at
        run.seconds, run.rows, run.tokens = seconds, event.rows, event.tokens
        run.progress.clear()

    def op_progressed(self, event: OpProgressed) -> None:
        """A rank is further in an op."""
        run = self._run(event.op, event.at)
        if len(run.progress) < _MOST_OPS or event.rank in run.progress:
            run.progress[event.rank] = Progress(event.done, event.total, event.unit)

    def op_failed(self, event: OpFailed) -> None:
        """An op raised."""
        run = self._run(event.op, event.at)
        run.state, run.ended_at = "failed", event.at
        run.seconds = event.at - run.started_at

    def weights_synced(self, event: WeightsSynced) -> None:
        """A group's rollout has new weights."""
        if len(self.syncs) < _MOST_OPS:
            self.syncs.append(Sync(event.group, event.at - event.seconds, event.at))

    def phase_switched(self, event: PhaseSwitched) -> None:
        """A rollout engine sleeps or is awake; the last switch is the present phase."""
        if len(self.switches) < _MOST_OPS:
            self.switches[event.op] = Switch(event.action, event.at - event.seconds, event.at)

    @property
    def phase(self) -> str | None:
        """The last switch, where there was one."""
        return next(reversed(self.switches.values())).action if self.switches else None

    def run_of(self, op: str) -> OpRun | None:
        """What the op did in this batch, if it has begun."""
        return self.ops[op] if op in self.begun else None

    def _run(self, op: str, started_at: float) -> OpRun:
        """The op's run; for one whose start was not told, one that started then."""
        known = self.ops.get(op) or OpRun(started_at)
        if op in self.ops or len(self.ops) < _MOST_OPS:
            self.ops[op] = known
            self.begun.add(op)
        return known
