"""One walk through a plan: an op starts when what it needs is there and its processes are free."""

from __future__ import annotations

import time
from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from typing import Any

from dagrl.compiler.plan import FreeOp, LoopOp, Op, PhaseOp, RunOp, SyncOp
from dagrl.data.metrics import Metrics, Sum, merge_all
from dagrl.errors import WorkerError
from dagrl.executor.events import Listener
from dagrl.executor.layout import Draw, Layout, SourceRows
from dagrl.executor.metric_names import MetricsByCall
from dagrl.executor.placement import Placement, Site
from dagrl.executor.process_sets import Pending, ProcessSet
from dagrl.executor.rounds import Rounds
from dagrl.executor.telling import Teller
from dagrl.executor.weight_sync import Transfer, start_sync
from dagrl.graph.pipeline import Call
from dagrl.workers.deployment import Planned
from dagrl.workers.frames import Rows
from dagrl.workers.node_states import check_state
from dagrl.workers.node_task import NodeReport, NodeTask

#: Seconds between two looks at how far the running ops are.
_PROGRESS_SECONDS = 0.5


@dataclass(frozen=True)
class _Running:
    op: RunOp | SyncOp | PhaseOp
    on: ProcessSet
    pending: Pending
    layout: Layout
    started: float
    sent_bytes: int = 0
    transfer: Transfer | None = None

    def results(self) -> list[Any]:
        """What each rank returned."""
        if self.transfer is not None:
            self.transfer.results()
        return self.pending.results()


@dataclass(frozen=True)
class _Tidying:
    op: FreeOp | LoopOp
    on: ProcessSet
    pending: Pending


class Walk:
    """Walks one plan once; ``states`` are those of the calls, and change as it goes.

    The rows of sources are given, those of a loop's source drawn round by round.
    """

    def __init__(
        self,
        site: Site,
        planned: Planned,
        step: int,
        sources: Mapping[str, SourceRows],
        draw: Draw,
        states: dict[str, Any],
        emit: Listener,
    ) -> None:
        self.site, self.pipeline, self.plan = site, planned.pipeline, planned.plan
        self.step, self.draw, self.states = step, draw, states
        self.tell = Teller(emit, self.plan.pipeline, step)
        self.metrics = MetricsByCall(planned)
        self.placement = Placement(site, planned, step, sources)
        self._waiting: list[Op] = list(self.plan.ops)
        self._running: dict[str, _Running] = {}
        self._tidying: list[_Tidying] = []
        self._loops: dict[str, Rounds] = {}
        self._loop_of = {op.id: loop.id for loop in self.plan.loops for op in loop.ops}
        self._done: set[str] = set()
        self._skipped = 0

    def run(self) -> Metrics:
        """Every op of the plan; the metrics of all calls."""
        try:
            while self._waiting or self._running:
                self._start_ready()
                self._finish_one()
            self._finish_tidying(self.site.deadline)
            self.tell.walked()
            skipped = Metrics({"skipped_updates": Sum(float(self._skipped))} if self._skipped else {})
            return merge_all([self.metrics.merged(), skipped, *(rounds.metrics() for rounds in self._loops.values())])
        finally:
            for on in self.site.sets:
                with suppress(WorkerError):  # a set that has failed is gone, columns and all
                    on.call("end_walk", [(self.plan.pipeline,)] * on.size)

    def _start_ready(self) -> None:
        """Start every op that can run now, the first in the plan first."""
        while (op := next((op for op in self._waiting if self._can_start(op)), None)) is not None:
            self._waiting.remove(op)
            match op:
                case RunOp():
                    self._start_call(op, self.pipeline.call(op.call))
                case SyncOp():
                    self._start_sync(op)
                case PhaseOp():
                    self._start_phase(op)
                case FreeOp():
                    self._start_free(op)
                case LoopOp():
                    self._loops[op.id] = Rounds(op, self.placement.group_size(op.ops[0]))
                    self._start_round(self._loops[op.id])

    def _can_start(self, op: Op) -> bool:
        if not self._done.issuperset(op.after):
            return False
        pools = () if isinstance(op, FreeOp | LoopOp) else (op.pool,)
        pools += (op.source_pool,) if isinstance(op, SyncOp) and op.source_pool else ()
        return all(self.site.by_pool[pool].name not in self._running for pool in pools)

    def _start_call(self, op: RunOp, call: Call) -> None:
        self.tell.started(op)
        started = time.perf_counter()
        on = self.site.by_pool[op.pool]
        layout = self.placement.layout_of(op, call, on)
        if op.mutates and layout.num_rows == 0:
            self._keep(op, layout, [])
            self._skipped += 1
            self._end_call(op, [], started, 0)
            return
        asked = self.placement.asked_bytes
        tasks = self._tasks(op, call, layout)
        sent = self.placement.asked_bytes - asked + sum(task.row_bytes for (task,) in tasks if task is not None)
        self._running[on.name] = _Running(op, on, on.call("run_node", tasks), layout, started, sent)

    def _tasks(self, op: RunOp, call: Call, layout: Layout) -> list[tuple[NodeTask | None]]:
        """What each rank is asked to do; None where it takes no part."""
        name, state = self.plan.pipeline, self.states.get(op.call)
        if op.source == op.call:
            parts = self.placement.round_of(op.call).split(len(layout.rows))
            return [(NodeTask(name, op.id, self.step, part.group_ids, part.positions, state=state),) for part in parts]
        arrivals = self.placement.send(op, layout)
        cut_anew = call.contract.split in ("batch", "minibatch") and len(layout.rows) > 1
        here = not cut_anew and self.placement.is_in_place(op, layout)
        n = self.placement.group_size(op)
        tasks: list[tuple[NodeTask | None]] = []
        for rank, ids in enumerate(layout.rows):
            rows = None if here else Rows(ids, ids // n)
            takes_part = rank == 0 or call.contract.split != "batch"
            task = NodeTask(name, op.id, self.step, rows=rows, arrivals=arrivals[rank], state=state)
            tasks.append((task if takes_part else None,))
        return tasks

    def _start_sync(self, op: SyncOp) -> None:
        on = self.site.by_pool[op.pool]
        started = time.perf_counter()
        transfer = start_sync(self.site, op)
        running = _Running(op, on, transfer.taking, Layout(on.name, ()), started, transfer=transfer)
        self._running |= {each.name: running for each in transfer.sets}

    def _start_phase(self, op: PhaseOp) -> None:
        on = self.site.by_pool[op.pool]
        pending = on.call("switch_phase", [(op.group, op.action, op.level)] * on.size)
        self._running[on.name] = _Running(op, on, pending, Layout(on.name, ()), time.perf_counter())

    def _start_free(self, op: FreeOp) -> None:
        """Ask the holders to let go; nobody waits for them."""
        holders = [self.placement.holder(column.rsplit(".", 1)[0]) for column in op.columns]
        for on in {on.name: on for on in holders if on is not None}.values():
            arguments = [(self.plan.pipeline, op.columns)] * on.size
            self._tidying.append(_Tidying(op, on, on.call("free", arguments)))
        self._done.add(op.id)
        self.placement.forget(self._done)
        self._finish_tidying(0.0)

    def _start_round(self, rounds: Rounds) -> None:
        """Put the ops of a loop before all others that wait."""
        loop = rounds.op
        rows = self.draw(loop.source)
        self.tell.round_started(loop, rounds)
        rounds.begin(len(rows.positions))
        self.placement.begin_round(loop, rows)
        self._done.difference_update(op.id for op in loop.ops)
        self._waiting[:0] = loop.ops

    def _end_round(self, rounds: Rounds) -> None:
        """After the last op of a round: another one, or what the loop has brought stands."""
        loop = rounds.op
        rounds.passed, pending = self.placement.end_round(loop)
        if rounds.is_over:
            pending += self.placement.end_loop(loop, rounds.kept())
            rounds.warn_if_short(self.step)
            self._done.add(loop.id)
        else:
            self._start_round(rounds)
        self._tidying += [_Tidying(loop, on, each) for on, each in pending]
        self._finish_tidying(0.0)

    def _finish_one(self) -> None:
        """Wait until one of the running ops is over."""
        running = [each for name, each in self._running.items() if name == each.on.name]
        if not running:
            return
        deadline = min(each.started for each in running) + self.site.deadline
        done = self._first_done(running, deadline)
        over = next((each for each in running if each.pending is done), None)
        if over is None:
            late = min(running, key=lambda each: each.started)
            pending = late.pending if late.transfer is None else late.transfer.late
            self._fail(late.op, pending.expire(self.site.deadline))
        else:
            self._running = {name: each for name, each in self._running.items() if each is not over}
            self._end(over)

    def _first_done(self, running: Sequence[_Running], deadline: float) -> Pending | None:
        """One of the calls that is over, None after the deadline; meanwhile progress is told."""
        pending = [each.pending for each in running]
        while True:
            left = max(0.0, deadline - time.perf_counter())
            done = running[0].on.first_done(pending, min(left, _PROGRESS_SECONDS))
            if done is not None or left <= _PROGRESS_SECONDS:
                return done
            for each in running:
                if isinstance(each.op, RunOp):
                    self.tell.progressed(each.op, each.on)

    def _end(self, over: _Running) -> None:
        reports: list[NodeReport] = []
        try:
            results = over.results()
            reports = [report for report in results if isinstance(report, NodeReport)]
            if isinstance(over.op, RunOp):
                self.tell.printed(over.op, results)
                self._keep(over.op, over.layout, reports)
        except Exception as error:  # noqa: BLE001 - noted and raised again
            self._fail(over.op, error)
        seconds = time.perf_counter() - over.started
        match over.op:
            case RunOp():
                self._end_call(over.op, reports, over.started, over.sent_bytes)
            case SyncOp():
                self.tell.synced(over.op, seconds)
                self._done.add(over.op.id)
            case PhaseOp():
                self.tell.switched(over.op, seconds)
                self._done.add(over.op.id)

    def _keep(self, op: RunOp, layout: Layout, reports: Sequence[NodeReport]) -> None:
        """Note where the op's rows lie, its metrics and its state."""
        self.placement.wrote(op, layout, reports)
        self.placement.send_ahead(op)
        statistics = merge_all(report.statistics for report in reports)
        self.metrics.add(op.call, merge_all(report.metrics for report in reports), statistics)
        if reports and op.call in self.states:  # checked here, where the user's modules are
            check_state(op.call, reports[0].state, type(self.states[op.call]))
            self.states[op.call] = reports[0].state

    def _end_call(self, op: RunOp, reports: Sequence[NodeReport], started: float, sent_bytes: int) -> None:
        self.tell.finished(op, reports, time.perf_counter() - started, sent_bytes)
        self._done.add(op.id)
        rounds = self._rounds_of(op)
        if rounds is not None and self._done.issuperset(inner.id for inner in rounds.op.ops):
            self._end_round(rounds)

    def _rounds_of(self, op: RunOp | SyncOp | PhaseOp) -> Rounds | None:
        """The loop that an op stands in."""
        loop = self._loop_of.get(op.id)
        return None if loop is None else self._loops[loop]

    def _fail(self, op: RunOp | SyncOp | PhaseOp, error: Exception) -> None:
        name, at = self.plan.pipeline, f" ({op.at})" if isinstance(op, RunOp) else ""
        self.tell.failed(op, error)
        kind, rounds = "node" if isinstance(op, RunOp) else "op", self._rounds_of(op)
        when = f"step {self.step}" if rounds is None else f"step {self.step}, round {rounds.number} of `{rounds.op.id}`"
        error.add_note(f"in {kind} `{op.id}`{at} of pipeline `{name}`, {when}")
        raise error

    def _finish_tidying(self, seconds: float) -> None:
        """Tell of the columns that are gone by now, or within that time."""
        for each in list(self._tidying):
            if each.on.first_done([each.pending], seconds) is None:
                return
            self._tidying.remove(each)
            try:
                results = each.pending.results()
            except Exception as error:
                error.add_note(f"after `{each.op.id}` of pipeline `{self.plan.pipeline}`, step {self.step}")
                raise
            if isinstance(each.op, FreeOp):
                self.tell.freed(each.op, sum(results))
