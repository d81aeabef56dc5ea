"""The state of a run as its events tell it; bounded, however long the run is."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Mapping
from statistics import median
from typing import Any, ClassVar

from dagrl.data.reported import RankMemory
from dagrl.executor.events import (
    CheckpointSaved,
    ConsoleWritten,
    Event,
    MemoryUsed,
    OpFailed,
    OpFinished,
    OpPrinted,
    OpProgressed,
    OpStarted,
    PhaseSwitched,
    RoundStarted,
    RowsSampled,
    RunContinued,
    RunFinished,
    RunPaused,
    RunStarted,
    StepFinished,
    StepStarted,
    StopRequested,
    Warned,
    WeightsSynced,
)
from dagrl.tui.formats import is_number
from dagrl.tui.series import Series
from dagrl.tui.walk_state import Walk

#: Of the last so many times of an op or a walk the median is its usual time.
RECENT = 20
#: Names of pipelines, ops, metrics and pools that are kept; a run has fewer, a damaged log may not.
_MOST_NAMES = 512
_MOST_TEXT = 16_384


class RunState:
    """What has happened in a run; ``apply`` takes its events in order, everything else only reads."""

    def __init__(self) -> None:
        self.pipelines: tuple[str, ...] = ()
        self.steps = 0
        self.seed = 0
        self.resumed_from: int | None = None
        self.started_at: float | None = None
        self.heard_at: float | None = None
        self.step_done = 0
        self.paused = False
        #: Somebody at this view has asked for a pause that has not begun; no event tells of it.
        self.pause_asked = False
        self.stopping_by: str | None = None
        #: "done", "stopped", "failed", or "gone" for a run that has ended without a word; None while it goes on.
        self.outcome: str | None = None
        self.ended_at: float | None = None
        self.walk: Walk | None = None
        self.last_walk: Walk | None = None
        self.last_evaluation: Walk | None = None
        self.series: dict[str, dict[str, Series]] = {}
        self.evaluated_at: dict[str, list[int]] = {}
        self.seconds_by_op: dict[str, float] = {}
        self.training_seconds = 0.0
        self.evaluation_seconds = 0.0
        self.saving_seconds = 0.0
        self.memory: dict[str, tuple[RankMemory, ...]] = {}
        self.samples: dict[str, RowsSampled] = {}
        self.num_warnings = 0
        self.last_warning = ""
        self.last_console = ""
        self.last_print: OpPrinted | None = None
        self.saved: CheckpointSaved | None = None
        self.saves_recent: deque[CheckpointSaved] = deque(maxlen=2)
        self.failure: OpFailed | None = None
        self._op_recent: dict[tuple[str, str], deque[float]] = {}
        self._walk_recent: dict[str, deque[float]] = {}

    @property
    def training(self) -> str:
        """The pipeline that trains: the first one."""
        return self.pipelines[0] if self.pipelines else ""

    def apply(self, event: Event) -> None:
        """Take the next event."""
        take = self._take.get(type(event))
        if take is not None:
            self.heard_at = event.at
            take(self, event)

    def lose(self) -> None:
        """Note that the run is no longer there, though it has not said how it ended."""
        if self.outcome is None:
            self.outcome, self.ended_at = "gone", self.heard_at

    def op_took(self, pipeline: str, op: str, seconds: float) -> None:
        """Count the time of an op."""
        if not is_number(seconds):
            return
        _recent(self._op_recent, (pipeline, op)).append(seconds)
        if pipeline == self.training and (op in self.seconds_by_op or len(self.seconds_by_op) < _MOST_NAMES):
            self.seconds_by_op[op] = self.seconds_by_op.get(op, 0.0) + seconds

    def usual(self, pipeline: str, op: str) -> float | None:
        """Seconds that an op takes: the median of its last times; None before its first."""
        recent = self._op_recent.get((pipeline, op))
        return median(recent) if recent else None

    def times_run(self, pipeline: str, op: str) -> int:
        """How many times the usual one is the median of."""
        return len(self._op_recent.get((pipeline, op), ()))

    def recent_walks(self, pipeline: str) -> tuple[float, ...]:
        """Seconds of the last walks of a pipeline."""
        return tuple(self._walk_recent.get(pipeline, ()))

    def metric(self, pipeline: str, name: str) -> Series | None:
        """The history of a metric; None where no step has had it."""
        return self.series.get(pipeline, {}).get(name)

    def _run_started(self, event: RunStarted) -> None:
        """A run begins or goes on: what a former process of it left open is over."""
        self.pipelines, self.steps, self.seed = event.pipelines, event.steps, event.seed
        self.resumed_from, self.started_at = event.resumed_from, event.at
        self.step_done = event.resumed_from or 0
        self.outcome = self.ended_at = self.stopping_by = self.failure = self.walk = None
        self.paused = False
        for each in (each for by_name in self.series.values() for each in by_name.values()):
            each.cut_after(self.step_done)
        self.evaluated_at = {name: [s for s in at if s <= self.step_done] for name, at in self.evaluated_at.items()}

    def _step_started(self, event: StepStarted) -> None:
        self.paused = False
        self.walk = Walk(event.pipeline, event.step, event.at)

    def _step_finished(self, event: StepFinished) -> None:
        walk = self._walk_of(event)
        walk.seconds, walk.ended_at = event.seconds, event.at
        _recent(self._walk_recent, event.pipeline).append(event.seconds)
        if event.pipeline == self.training:
            self.step_done = event.step
            self.last_walk = walk
            self.training_seconds += event.seconds
        else:
            self.last_evaluation = walk
            self.evaluation_seconds += event.seconds
            self.evaluated_at[event.pipeline] = [*self.evaluated_at.get(event.pipeline, [])[-1:], event.step]
        self._add_metrics(event)

    def _add_metrics(self, event: StepFinished) -> None:
        by_name = self.series.setdefault(event.pipeline, {})
        for name, value in event.metrics.items():
            series = by_name.get(name)
            if series is None:
                if len(by_name) == _MOST_NAMES:
                    continue
                series = by_name[name] = Series()
            if is_number(value):
                series.add(event.step, value)

    def _op_started(self, event: OpStarted) -> None:
        self._walk_of(event).op_started(event)

    def _round_started(self, event: RoundStarted) -> None:
        self._walk_of(event).round_started(event)

    def _op_progressed(self, event: OpProgressed) -> None:
        self._walk_of(event).op_progressed(event)

    def _op_finished(self, event: OpFinished) -> None:
        self._walk_of(event).op_finished(event)
        self.op_took(event.pipeline, event.op, event.seconds)

    def _op_failed(self, event: OpFailed) -> None:
        self._walk_of(event).op_failed(event)
        self.failure = OpFailed(event.at, event.pipeline, event.step, event.op, event.error[:_MOST_TEXT])

    def _op_printed(self, event: OpPrinted) -> None:
        text = event.text[-_MOST_TEXT:]
        self.last_print = OpPrinted(event.at, event.pipeline, event.step, event.op, event.rank, text)

    def _weights_synced(self, event: WeightsSynced) -> None:
        self._walk_of(event).weights_synced(event)

    def _phase_switched(self, event: PhaseSwitched) -> None:
        self._walk_of(event).phase_switched(event)

    def _memory_used(self, event: MemoryUsed) -> None:
        if event.pool in self.memory or len(self.memory) < _MOST_NAMES:
            self.memory[event.pool] = event.ranks

    def _rows_sampled(self, event: RowsSampled) -> None:
        self.samples[event.pipeline] = event

    def _checkpoint_saved(self, event: CheckpointSaved) -> None:
        self.saved = event
        self.saves_recent.append(event)
        self.saving_seconds += event.seconds

    def _warned(self, event: Warned) -> None:
        self.num_warnings += 1
        self.last_warning = event.text[:_MOST_TEXT]

    def _console_written(self, event: ConsoleWritten) -> None:
        self.last_console = event.text[-_MOST_TEXT:]

    def _stop_requested(self, event: StopRequested) -> None:
        self.stopping_by = event.by

    def _paused(self, event: RunPaused) -> None:
        self.paused, self.pause_asked = True, False

    def _continued(self, event: RunContinued) -> None:
        self.paused = False

    def _finished(self, event: RunFinished) -> None:
        self.outcome, self.ended_at = event.outcome, event.at
        self.step_done = event.steps_done
        self.paused = False

    def _walk_of(
        self,
        event: StepFinished
        | OpStarted
        | OpFinished
        | OpProgressed
        | OpFailed
        | RoundStarted
        | WeightsSynced
        | PhaseSwitched,
    ) -> Walk:
        """The walk that the event is of: the running one, or a new one where its start was not told."""
        walk = self.walk
        if walk is None or walk.pipeline != event.pipeline or walk.step != event.step:
            walk = self.walk = Walk(event.pipeline, event.step, event.at)
        return walk

    _take: ClassVar[Mapping[type[Event], Callable[[Any, Any], None]]] = {
        RunStarted: _run_started,
        StepStarted: _step_started,
        StepFinished: _step_finished,
        OpStarted: _op_started,
        OpProgressed: _op_progressed,
        RoundStarted: _round_started,
        OpFinished: _op_finished,
        OpFailed: _op_failed,
        OpPrinted: _op_printed,
        WeightsSynced: _weights_synced,
        PhaseSwitched: _phase_switched,
        MemoryUsed: _memory_used,
        RowsSampled: _rows_sampled,
        CheckpointSaved: _checkpoint_saved,
        Warned: _warned,
        ConsoleWritten: _console_written,
        StopRequested: _stop_requested,
        RunPaused: _paused,
        RunContinued: _continued,
        RunFinished: _finished,
    }


def _recent(by_key: dict[Any, deque[float]], key: Any) -> deque[float]:
    """The last times of something."""
    return by_key.setdefault(key, deque(maxlen=RECENT))
