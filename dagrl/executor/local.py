"""The in-process executor: runs a plan op by op in this process, without Ray."""

from __future__ import annotations

import time
import weakref
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from jaxtyping import Int64
from torch import Tensor

from dagrl.compiler.plan import FreeOp, Plan, RunOp, SyncOp
from dagrl.data.columns import LEGEND
from dagrl.data.metrics import Metrics, Sum
from dagrl.errors import DagrlError, NodeError
from dagrl.executor.column_metrics import column_metrics
from dagrl.executor.events import ColumnsFreed, Event, Listener, OpFailed, OpFinished, OpStarted, WeightsSynced
from dagrl.executor.frames import Frames, Rows
from dagrl.graph.pipeline import Call, Pipeline
from dagrl.graph.specs import WorkerGroup
from dagrl.ops.random import hash_ids, key_of
from dagrl.rewards.pool import close_pools
from dagrl.workers.node_runner import NodeInputs, NodeOutput, run_node
from dagrl.workers.policy import PolicyWorker


@dataclass(frozen=True)
class SourceRows:
    """What a ``prompts`` call reads in one step: positions in the data, and their numbers in the data stream."""

    positions: Int64[Tensor, " M"]
    group_ids: Int64[Tensor, " M"]


@dataclass(frozen=True)
class Planned:
    """A pipeline and its plan."""

    pipeline: Pipeline
    plan: Plan


class LocalExecutor:
    """Holds one worker for each group and walks plans; node states live here between steps."""

    def __init__(self, planned: Sequence[Planned], *, seed: int, total_steps: int) -> None:
        self.seed = seed
        self._listeners: list[Listener] = []
        self._end = weakref.finalize(self, close_pools)
        self.workers = _start_workers(planned, total_steps)
        self._states = {
            (one.pipeline.name, call.name): call.state
            for one in planned
            for call in one.pipeline.calls
            if call.contract.state is not None
        }

    def run(self, planned: Planned, step: int, sources: Mapping[str, SourceRows]) -> Metrics:
        """Walk the plan once; the metrics of all its calls."""
        walk = _Walk(self, planned, step, sources)
        return walk.run()

    def worker(self, group: str | None) -> PolicyWorker | None:
        """The worker of a group."""
        return None if group is None else self.workers[group]

    def close(self) -> None:
        """End the processes that nodes have started; done too when the executor is collected, and at exit."""
        self._end()

    def subscribe(self, listener: Listener) -> None:
        """Have every event from now on handed to ``listener``."""
        self._listeners.append(listener)

    def emit(self, event: Event) -> None:
        """Hand an event to the subscribers."""
        for listener in self._listeners:
            listener(event)

    def state(self, pipeline: str, call: str) -> Any:
        """The state of a call, None if it keeps none."""
        return self._states.get((pipeline, call))

    def set_state(self, pipeline: str, call: str, state: Any) -> None:
        """Keep the new state of a call."""
        self._states[pipeline, call] = state


class _Walk:
    """One walk through a plan."""

    def __init__(self, executor: LocalExecutor, planned: Planned, step: int, sources: Mapping[str, SourceRows]) -> None:
        self.executor = executor
        self.pipeline, self.plan = planned.pipeline, planned.plan
        self.step = step
        self.sources = sources
        self.frames = Frames(planned.pipeline)
        self.metrics = Metrics()
        self._prefixes = _metric_prefixes(planned)
        self._reporters: dict[str, str] = {}

    def run(self) -> Metrics:
        for op in self.plan.ops:
            match op:
                case RunOp():
                    self._run(op)
                case SyncOp():
                    self._sync(op)
                case FreeOp():
                    freed = self.frames.free(op.columns)
                    self.executor.emit(ColumnsFreed(time.time(), self.plan.pipeline, self.step, op.columns, freed))
        return self.metrics

    def _run(self, op: RunOp) -> None:
        name = self.plan.pipeline
        self.executor.emit(OpStarted(time.time(), name, self.step, op.id))
        started, cpu = time.perf_counter(), time.process_time()
        try:
            num_rows = self._run_call(op, self.pipeline.call(op.call))
        except (Exception, SystemExit) as error:
            self.executor.emit(OpFailed(time.time(), name, self.step, op.id, f"{type(error).__name__}: {error}"))
            note = f"in node `{op.call}` ({op.at}) of pipeline `{name}`, step {self.step}"
            if isinstance(error, SystemExit):
                raise NodeError(f"sys.exit({error.code!r}) was called {note}: raise an error instead") from error
            error.add_note(note)
            raise
        seconds, cpu_seconds = time.perf_counter() - started, time.process_time() - cpu
        self.executor.emit(OpFinished(time.time(), name, self.step, op.id, num_rows, seconds, cpu_seconds))

    def _run_call(self, op: RunOp, call: Call) -> int:
        """Run the call on its rows; how many there were."""
        rows = self._source_rows(call) if op.source == op.call else self.frames.rows_of(op)
        if op.mutates and len(rows.row_ids) == 0:
            self._observe(op, Metrics({"skipped_updates": Sum(1.0)}))
            return 0
        columns, widths = self.frames.gather(op.reads, rows)
        inputs = NodeInputs(
            columns=columns,
            widths=widths,
            group_ids=rows.group_ids.clone(),
            seeds=hash_ids(key_of(self.executor.seed, self.plan.pipeline, self.step, op.call), rows.row_ids),
            positions=self._positions(call),
            wanted=frozenset(op.writes),
            aliases=op.aliases,
            step=self.step,
            state=self.executor.state(self.plan.pipeline, op.call),
        )
        output = run_node(call, inputs, self.executor.worker(op.group))
        self._keep(op, call, rows, output)
        return len(rows.row_ids)

    def _keep(self, op: RunOp, call: Call, rows: Rows, output: NodeOutput) -> None:
        if output.flags is not None:
            rows = rows.keep(rows.row_ids[output.flags])
        kept = {name: column for name, column in output.columns.items() if name in op.writes}
        self.frames.put(op.call, rows, output.widths, kept)
        if call.contract.state is not None:
            self.executor.set_state(self.plan.pipeline, op.call, output.state)
        self._observe(op, output.metrics)
        self._observe(op, column_metrics(output.columns))

    def _observe(self, op: RunOp, metrics: Metrics) -> None:
        named = {f"{self._prefixes[op.call]}{name}": metric for name, metric in metrics.items()}
        for name in named:
            first = self._reporters.setdefault(name, op.call)
            if first != op.call or name in self.metrics:
                raise NodeError(f"`{op.call}` reports the metric `{name}`, which `{first}` reports already: rename it")
        self.metrics = self.metrics.merge(named)

    def _source_rows(self, call: Call) -> Rows:
        n = call.options["n"]
        groups = self.sources[call.name].group_ids.repeat_interleave(n)
        return Rows(groups * n + torch.arange(n).repeat(len(groups) // n), groups)

    def _positions(self, call: Call) -> Tensor | None:
        if call.contract.rows != "source":
            return None
        return self.sources[call.name].positions.repeat_interleave(call.options["n"])

    def _sync(self, op: SyncOp) -> None:
        started = time.perf_counter()
        self.executor.workers[op.group].sync_rollout()
        seconds = time.perf_counter() - started
        self.executor.emit(WeightsSynced(time.time(), self.plan.pipeline, self.step, op.group, seconds))


def _start_workers(planned: Sequence[Planned], total_steps: int) -> dict[str, PolicyWorker]:
    """One worker for each group that some plan runs a call on; nothing of a pruned group is loaded."""
    needs: dict[str, set[str]] = {}
    groups: dict[str, WorkerGroup] = {}
    for one in planned:
        for op in one.plan.runs:
            group = one.pipeline.call(op.call).group
            if group is not None:
                groups[group.name] = group
                needs.setdefault(group.name, set()).add(op.needs or "train")
    for group in groups.values():
        if group.pool.num_processes > 1:
            raise DagrlError(f"the local executor runs one process, pool `{group.pool.name}` asks for more")
    return {
        name: PolicyWorker(group, total_steps=total_steps, rollout="rollout" in needs[name])
        for name, group in groups.items()
    }


def _metric_prefixes(planned: Planned) -> dict[str, str]:
    """What each call's metrics begin with: its name, if its node or a column it measures comes twice.

    A call whose measured column another call turns into the same column, as a penalty does with rewards, counts
    as a part of the whole: it carries its name and the last of the chain does not.
    """
    runs = planned.plan.runs
    nodes = Counter(op.node for op in runs)
    measured = {op.call: _measured(planned.pipeline.call(op.call)) for op in runs}
    parts = {read.call for op in runs for read in op.reads if read.source in measured[op.call]}
    wholes = Counter(name for call, names in measured.items() if call not in parts for name in names)
    return {
        op.call: f"{op.call}/"
        if nodes[op.node] > 1 or op.call in parts or any(wholes[name] > 1 for name in measured[op.call])
        else ""
        for op in runs
    }


def _measured(call: Call) -> list[str]:
    return [w.name for w in call.contract.writes if w.name in LEGEND and LEGEND[w.name].metric is not None]
