"""What a walk tells of itself: the events of its ops, from what the executor sees and ranks report."""

from __future__ import annotations

import time
from collections.abc import Sequence

from dagrl.compiler.plan import FreeOp, LoopOp, PhaseOp, RunOp, SyncOp
from dagrl.data.reported import RankMemory
from dagrl.executor.events import (
    ColumnsFreed,
    Listener,
    MemoryUsed,
    OpFailed,
    OpFinished,
    OpPrinted,
    OpProgressed,
    OpStarted,
    PhaseSwitched,
    RoundStarted,
    RowsSampled,
    WeightsSynced,
)
from dagrl.executor.process_sets import ProcessSet
from dagrl.executor.rounds import Rounds
from dagrl.workers.node_task import NodeReport


class Teller:
    """Emits the events of one walk."""

    def __init__(self, emit: Listener, pipeline: str, step: int) -> None:
        self._emit, self._walk = emit, (pipeline, step)
        self._memory: dict[str, tuple[RankMemory, ...]] = {}

    def started(self, op: RunOp) -> None:
        """The op begins."""
        self._emit(OpStarted(time.time(), *self._walk, op.id))

    def round_started(self, loop: LoopOp, rounds: Rounds) -> None:
        """The next round of a loop begins."""
        ops, passed = tuple(op.id for op in loop.ops), len(rounds.groups)
        number = rounds.number + 1
        self._emit(RoundStarted(time.time(), *self._walk, loop.id, number, loop.max_rounds, passed, loop.groups, ops))

    def progressed(self, op: RunOp, on: ProcessSet) -> None:
        """What the ranks that run the op have said of how far they are."""
        for told in on.progress():
            if (told.pipeline, told.step, told.op) == (*self._walk, op.id):
                self._emit(OpProgressed(time.time(), *told))

    def printed(self, op: RunOp, results: Sequence[NodeReport | None]) -> None:
        """What the op has printed on ranks that are other processes."""
        for rank, report in enumerate(results):
            if report is not None and report.printed:
                self._emit(OpPrinted(time.time(), *self._walk, op.id, rank, report.printed))

    def finished(self, op: RunOp, reports: Sequence[NodeReport], seconds: float, sent_bytes: int) -> None:
        """The op is done; its samples come first, and what its ranks hold is noted."""
        samples = tuple(row for report in reports for row in report.samples)
        if samples:
            self._emit(RowsSampled(time.time(), *self._walk, op.id, samples))
        self._note_memory(op.pool, tuple(each.held for each in reports if each.held is not None))
        self._emit(
            OpFinished(
                time.time(),
                *self._walk,
                op.id,
                rows=sum(report.num_rows for report in reports),
                seconds=seconds,
                cpu_seconds=sum(report.cpu_seconds for report in reports),
                driver_bytes=sent_bytes + sum(report.row_bytes for report in reports),
                tokens=sum(report.response_tokens for report in reports),
            )
        )

    def failed(self, op: RunOp | SyncOp | PhaseOp, error: Exception) -> None:
        """The op raised."""
        self._emit(OpFailed(time.time(), *self._walk, op.id, f"{type(error).__name__}: {error}"))

    def synced(self, op: SyncOp, seconds: float) -> None:
        """Rollout weights are the trained ones."""
        self._emit(WeightsSynced(time.time(), *self._walk, op.group, seconds))

    def switched(self, op: PhaseOp, seconds: float) -> None:
        """Some part of a group is in memory now, or away."""
        self._emit(PhaseSwitched(time.time(), *self._walk, op.id, op.group, op.action, seconds))

    def freed(self, op: FreeOp, num_bytes: int) -> None:
        """Columns are gone."""
        self._emit(ColumnsFreed(time.time(), *self._walk, op.columns, num_bytes))

    def walked(self) -> None:
        """The walk is over: what the ranks of each pool held when its columns were largest."""
        for pool, ranks in self._memory.items():
            self._emit(MemoryUsed(time.time(), *self._walk, pool, ranks))

    def _note_memory(self, pool: str, held: tuple[RankMemory, ...]) -> None:
        before = self._memory.get(pool, ())
        if len(held) >= len(before) and _columns(held) >= _columns(before):
            self._memory[pool] = held


def _columns(ranks: Sequence[RankMemory]) -> int:
    return sum(rank.columns for rank in ranks)
