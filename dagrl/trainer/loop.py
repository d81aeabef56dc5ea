"""The loop of a run: compile, then step after step run the plan, record, evaluate; at the end export the model."""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from dagrl.compiler import LOCAL, Plan, check_before_run, compile_pipelines
from dagrl.data.metrics import Metrics, merge_all
from dagrl.data.rows import PromptRows, rows_in_use
from dagrl.errors import ConfigError, Problem, counted
from dagrl.executor.events import Event, OpFinished, RunFinished, RunStarted, StepFinished, StepStarted
from dagrl.executor.local import LocalExecutor, Planned, SourceRows
from dagrl.graph.pipeline import Call, Pipeline
from dagrl.storage.run_folder import RunFolder, check_new
from dagrl.trainer.data_order import NO_ROWS, ShuffledOrder, walk_in_order

MODEL_FOLDER = "model"


@dataclass(frozen=True)
class Record:
    """The metrics of one walk: a training step, or an evaluation after ``step`` steps.

    ``seconds`` are those of the whole walk, ``op_seconds`` those of each of its ops.
    """

    pipeline: str
    step: int
    metrics: Mapping[str, float]
    seconds: float
    op_seconds: Mapping[str, float]

    def to_dict(self) -> dict[str, Any]:
        """One line of metrics.jsonl; times are the only keys that differ between equal runs."""
        times = {"time/step": self.seconds, **{f"time/{op}": spent for op, spent in self.op_seconds.items()}}
        head = {"pipeline": self.pipeline, "step": self.step}
        return {**head, **self.metrics, **times, **head}


@dataclass(frozen=True)
class RunResult:
    """What a run leaves: the records of its steps and evaluations, in order, and its folder."""

    records: tuple[Record, ...]
    folder: Path


def run(
    pipelines: Sequence[Pipeline],
    *,
    out: str,
    plans: Sequence[Plan] | None = None,
    seed: int = 0,
    steps: int | None = None,
    config: Mapping[str, Any] | None = None,
    on_start: Callable[[], None] | None = None,
    on_record: Callable[[Record], None] | None = None,
) -> RunResult:
    """Train: the first pipeline is the step, the others evaluate. ``steps`` overrides the pipeline's own.

    ``plans`` are those of the pipelines where they have been compiled already.

    Raises:
        CompileError, ConfigError: before anything is written.
    """
    plans = compile_pipelines(pipelines, LOCAL) if plans is None else plans
    planned = [Planned(pipeline, plan) for pipeline, plan in zip(pipelines, plans, strict=True)]
    num_steps = _num_steps(pipelines[0], steps)
    orders = _training_orders(planned[0], seed)
    check_new(out)
    check_before_run(pipelines, plans)
    executor = LocalExecutor(planned, seed=seed, total_steps=num_steps)
    with RunFolder(out) as folder:
        if on_start is not None:
            on_start()
        folder.write_json("config.json", {"seed": seed, "steps": num_steps, **(config or {})})
        folder.write_json("plan.json", [one.plan.to_dict() for one in planned])
        return _Loop(planned, executor, orders, folder, num_steps, on_record).run()


def _num_steps(pipeline: Pipeline, override: int | None) -> int:
    steps = pipeline.steps if override is None else override
    if steps is None or isinstance(steps, bool) or steps < 1:
        what = f"pipeline `{pipeline.name}` runs for steps={steps}."
        raise ConfigError(
            [Problem(what, pipeline.at, fix='say how many: `Pipeline("...", steps=100)` or `--steps 100`')]
        )
    return steps


def _training_orders(planned: Planned, seed: int) -> dict[str, ShuffledOrder]:
    orders: dict[str, ShuffledOrder] = {}
    for call in (planned.pipeline.call(op.call) for op in planned.plan.runs if op.source == op.call):
        options = call.options
        rows = _rows(call)
        if len(rows) < options["batch_size"]:
            found = f"`{options['data']}` has {counted(len(rows), 'row')} in the split `{options['split']}`"
            what = f"{found}, fewer than batch_size={options['batch_size']}."
            raise ConfigError([Problem(what, call.at, fix="lower `batch_size` or give more data")])
        orders[call.name] = ShuffledOrder(len(rows), options["batch_size"], seed)
    return orders


def _rows(call: Call) -> PromptRows:
    """The data of a source; ``test_share`` is an option that a source of one's own need not have."""
    options = call.options
    test_share = options["test_share"] if call.contract.option("test_share") is not None else 0.0
    return rows_in_use(options["data"], options["split"], test_share)


class _Loop:
    def __init__(
        self,
        planned: Sequence[Planned],
        executor: LocalExecutor,
        orders: Mapping[str, ShuffledOrder],
        folder: RunFolder,
        num_steps: int,
        on_record: Callable[[Record], None] | None,
    ) -> None:
        self.training, *self.evaluations = planned
        self.orders = orders
        self.folder = folder
        self.executor = executor
        self.num_steps = num_steps
        self.records: list[Record] = []
        self._on_record = on_record
        self._op_seconds: dict[str, float] = {}
        executor.subscribe(self._listen)

    def run(self) -> RunResult:
        names = tuple(one.pipeline.name for one in (self.training, *self.evaluations))
        self._listen(RunStarted(time.time(), names, self.num_steps, self.executor.seed))
        outcome = "failed"
        try:
            self._evaluate(0)
            for step in range(1, self.num_steps + 1):
                self._train(step)
                self._evaluate(step)
            self._export()
            outcome = "done"
        except KeyboardInterrupt:
            outcome = "stopped"
            raise
        finally:
            done = sum(record.pipeline == self.training.pipeline.name for record in self.records)
            self._listen(RunFinished(time.time(), outcome, done))
            self.executor.close()
        return RunResult(tuple(self.records), self.folder.path)

    def _train(self, step: int) -> None:
        sources = {name: order.rows(step - 1) for name, order in self.orders.items()}
        self._record(self.training, step, [sources])

    def _evaluate(self, step: int) -> None:
        for one in self.evaluations:
            every = one.pipeline.every
            due = step in (0, self.num_steps) or (every is not None and step % every == 0)
            if due:
                self._record(one, step, _evaluation_batches(one))

    def _record(self, planned: Planned, step: int, batches: Sequence[Mapping[str, SourceRows]]) -> None:
        """Walk the plan over the batches and keep the merged metrics."""
        name = planned.pipeline.name
        self._listen(StepStarted(time.time(), name, step))
        started = time.perf_counter()
        self._op_seconds = {}
        metrics: Metrics = merge_all(self.executor.run(planned, step, sources) for sources in batches)
        seconds = time.perf_counter() - started
        record = Record(name, step, metrics.numbers(), seconds, self._op_seconds)
        self.records.append(record)
        self.folder.append("metrics.jsonl", record.to_dict())
        self._listen(StepFinished(time.time(), name, step, seconds, record.metrics))
        self.folder.flush()
        if self._on_record is not None:
            self._on_record(record)

    def _listen(self, event: Event) -> None:
        if isinstance(event, OpFinished):
            self._op_seconds[event.op] = self._op_seconds.get(event.op, 0.0) + event.seconds
        self.folder.append("events.jsonl", event.to_dict())

    def _export(self) -> None:
        """Write every trained model in Hugging Face format: ``model``, or ``model/GROUP`` where there are several."""
        trained = [group.name for group in self.training.plan.groups if group.trains]
        for name in trained:
            folder = self.folder.path / MODEL_FOLDER
            self.executor.workers[name].save(folder if len(trained) == 1 else folder / name)


def _evaluation_batches(planned: Planned) -> list[dict[str, SourceRows]]:
    """All rows of each source, in order; sources of different lengths end when the longest does."""
    walks: dict[str, list[SourceRows]] = {}
    for call in (planned.pipeline.call(op.call) for op in planned.plan.runs if op.source == op.call):
        rows = _rows(call)
        walks[call.name] = walk_in_order(len(rows), call.options["batch_size"])
    num_batches = max(len(walk) for walk in walks.values())
    return [
        {name: walk[number] if number < len(walk) else NO_ROWS for name, walk in walks.items()}
        for number in range(num_batches)
    ]
