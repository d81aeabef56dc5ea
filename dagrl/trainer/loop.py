"""The loop of a run: compile, then each step run the plan, record, evaluate, save; at the end export the model."""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping, Sequence
from contextlib import nullcontext
from typing import Any, Literal

from dagrl.compiler import Plan, check_before_run, compile_pipelines
from dagrl.data.metrics import Metrics, merge_all
from dagrl.errors import ConfigError, Problem, counted
from dagrl.executor.base import Executor, Runtime
from dagrl.executor.events import (
    Event,
    Listener,
    OpFinished,
    PhaseSwitched,
    RunFinished,
    RunStarted,
    StepFinished,
    StepStarted,
    WeightsSynced,
)
from dagrl.executor.layout import SourceRows
from dagrl.executor.local import LOCAL_RUNTIME
from dagrl.graph.pipeline import Pipeline
from dagrl.graph.states import STATE_FIX, state_faults
from dagrl.storage.checkpoints import Checkpoint, Checkpoints, newest_step
from dagrl.storage.run_folder import CHECKPOINTS, MODEL, PROFILE, RunFolder, is_private
from dagrl.trainer.data_order import DataStream
from dagrl.trainer.records import Record, RunResult, Start
from dagrl.trainer.same_run import check_same_run, describe_run
from dagrl.trainer.saving import ON_SIGNAL, Saver, Saving
from dagrl.trainer.sources import evaluation_batches, open_streams, training_orders
from dagrl.trainer.stopping import StopRequest
from dagrl.trainer.waiting import warn_of_waiting
from dagrl.workers.deployment import Planned


def run(
    pipelines: Sequence[Pipeline],
    *,
    out: str,
    plans: Sequence[Plan] | None = None,
    seed: int = 0,
    steps: int | None = None,
    config: Mapping[str, Any] | None = None,
    saving: Saving = ON_SIGNAL,
    resume: Literal["never", "auto"] = "never",
    runtime: Runtime = LOCAL_RUNTIME,
    stop: StopRequest | None = None,
    on_start: Callable[[Start], None] | None = None,
    on_record: Callable[[Record], None] | None = None,
    on_event: Listener | None = None,
    between_steps: Callable[[Listener], None] | None = None,
    profile: Sequence[int] = (),
) -> RunResult:
    """Train: the first pipeline is the step, the others evaluate. ``steps`` overrides the pipeline's own.

    ``runtime`` says where ops run; whoever made it closes it. ``plans`` are those of the
    pipelines for its machine, where they have been compiled already.

    ``resume="auto"`` goes on in ``out`` from its newest sound checkpoint; without one it starts again, and with
    ``"never"`` ``out`` is new. ``stop`` hears signals while the loop runs: a first ends it after the step, saved.
    ``between_steps`` is called before each training step and after the last one, and may tell events of its own.
    Of the steps in ``profile`` every process writes a trace into ``profile/step_000002`` of the run folder.

    Raises:
        CompileError, ConfigError: before anything is written.
    """
    plans = compile_pipelines(pipelines, runtime.machine) if plans is None else plans
    planned = [Planned(pipeline, plan) for pipeline, plan in zip(pipelines, plans, strict=True)]
    _check_states(pipelines)
    num_steps = _num_steps(pipelines[0], steps)
    orders = training_orders(planned[0], seed)
    rows = {name: order.num_rows for name, order in orders.items()}
    description = describe_run(planned, seed=seed, steps=num_steps, config=config or {}, rows=rows)
    _check_shared(out, runtime)
    with RunFolder(out, resume=resume == "auto") as folder:
        checkpoints = Checkpoints(folder.below(CHECKPOINTS), keep=saving.keep)
        found = _found(folder, checkpoints, description, planned)
        if found is not None and found.step == num_steps and _is_exported(planned[0], folder):
            return RunResult((), out, num_steps, resumed_from=num_steps)
        _check_profile(profile, found.step if found is not None else 0, num_steps)
        check_before_run(pipelines, plans)
        warn_of_waiting(pipelines[0], num_steps)
        executor = runtime.start(planned, seed=seed, total_steps=num_steps)
        try:
            start = Start(out, num_steps, found.step if found is not None else None, again=not folder.is_new)
            streams = open_streams(orders, found)
            if found is not None:
                executor.load_state(found.open_part, found.names)
            folder.make()
            folder.begin(found.state["lines"] if found is not None else {})
            checkpoints.clean()
            folder.write_json("config.json", {"seed": seed, "steps": num_steps, **(config or {})})
            folder.write_json("plan.json", [one.plan.to_dict() for one in planned])
            if on_start is not None:
                on_start(start)
            saver = Saver(saving, checkpoints, description, found)
            loop = _Loop(planned, executor, streams, folder, start, saver, stop, on_record, between_steps, profile)
            if on_event is not None:
                executor.subscribe(on_event)
            return loop.run()
        finally:
            executor.close()


def _check_shared(out: str, runtime: Runtime) -> None:
    """See that the processes of the run write to the folder that this process reads."""
    if runtime.machine.limit is not None and is_private(out):
        what = f"`--out {out}` is memory of one process, and on Ray others write to the run folder too."
        raise ConfigError([Problem(what, fix="give a folder that all machines see, or `--executor local`")])


def _check_profile(steps: Sequence[int], done: int, last: int) -> None:
    """See that every step to be traced is one that the run is going to make."""
    missing = sorted(step for step in set(steps) if not done < step <= last)
    if missing:
        named = ", ".join(map(str, missing))
        what = f"{counted(len(missing), 'step')} to be profiled will not be run: {named}."
        facts = (("steps", f"{done + 1} to {last}" + (f", since {done} are done" if done else "")),)
        raise ConfigError([Problem(what, facts=facts, fix="choose among these, or give another `--out`")])


def _check_states(pipelines: Sequence[Pipeline]) -> None:
    """See that checkpoints can hold the states that nodes keep."""
    problems = [
        Problem(f"the state of `{call.name}` cannot be saved: {fault}.", call.at, fix=STATE_FIX)
        for pipeline in pipelines
        for call in pipeline.calls
        if call.contract.state is not None
        for fault in state_faults(call.contract.state)
    ]
    if problems:
        raise ConfigError(problems)


def _found(
    folder: RunFolder, checkpoints: Checkpoints, description: Mapping[str, Any], planned: Sequence[Planned]
) -> Checkpoint | None:
    """The checkpoint to go on from, if there is one."""
    found = None if folder.is_new else checkpoints.latest_valid()
    if found is not None:
        check_same_run(found, description, planned)
    elif folder.exists(MODEL) or newest_step(folder.below(CHECKPOINTS)) is not None:
        what = f"there is a run in `{folder.url}`, and no sound checkpoint of it to go on from."
        raise ConfigError([Problem(what, fix="give another `--out`, or move the old run away to start again")])
    return found


def _num_steps(pipeline: Pipeline, override: int | None) -> int:
    steps = pipeline.steps if override is None else override
    if steps is None or isinstance(steps, bool) or steps < 1:
        what = f"pipeline `{pipeline.name}` runs for steps={steps}."
        raise ConfigError(
            [Problem(what, pipeline.at, fix='say how many: `Pipeline("...", steps=100)` or `--steps 100`')]
        )
    return steps


class _Loop:
    def __init__(
        self,
        planned: Sequence[Planned],
        executor: Executor,
        streams: Mapping[str, DataStream],
        folder: RunFolder,
        start: Start,
        saver: Saver,
        stop: StopRequest | None,
        on_record: Callable[[Record], None] | None,
        between_steps: Callable[[Listener], None] | None,
        profile: Sequence[int],
    ) -> None:
        self.training, *self.evaluations = planned
        self.executor = executor
        self.streams = streams
        self.folder = folder
        self.start = start
        self.saver = saver
        self.step = start.resumed_from or 0
        self.records: list[Record] = []
        self._stop = stop
        self._on_record = on_record
        self._between_steps = between_steps
        self._profile = frozenset(profile)
        self._op_seconds: dict[str, float] = {}
        self._emit = executor.emit
        executor.subscribe(self._listen)

    def run(self) -> RunResult:
        names = tuple(one.pipeline.name for one in (self.training, *self.evaluations))
        self._emit(RunStarted(time.time(), names, self.start.steps, self.executor.seed, self.start.resumed_from))
        outcome = "failed"
        try:
            with self._stop or nullcontext():
                self._steps()
                if self.step == self.start.steps:
                    self._export()
                self._pause()
            outcome = "done" if self.step == self.start.steps else "stopped"
        except KeyboardInterrupt:
            outcome = "stopped"
            raise
        finally:
            self._emit(RunFinished(time.time(), outcome, self.step))
        signal = self._stop.signal if self._stop is not None and outcome == "stopped" else None
        saved = None if self.saver.newest is None else self.saver.newest.url
        return RunResult(tuple(self.records), self.folder.url, self.step, self.start.resumed_from, signal, saved)

    def _steps(self) -> None:
        """Step after step, from where the run is to its end or to a request to stop; a stopped run is saved."""
        if self.start.resumed_from is None:
            self._evaluate(0)
        while self.step < self.start.steps and self._goes_on():
            self._train(self.step + 1)
            self._evaluate(self.step + 1)
            self.step += 1
            if self.saver.is_due(self.step, self.start.steps):
                self._save()
        if self.step < self.start.steps and not self.saver.has(self.step):
            self._save()

    def _goes_on(self) -> bool:
        """Give whoever steers the run its turn; False once somebody has asked it to stop."""
        self._pause()
        return self._stop is None or self._stop.signal is None

    def _pause(self) -> None:
        if self._between_steps is not None:
            self._between_steps(self._emit)

    def _save(self) -> None:
        drawn = {name: stream.drawn for name, stream in self.streams.items()}
        self._emit(self.saver.save(self.step, self.executor, self.folder, drawn))

    def _train(self, step: int) -> None:
        looped = {loop.source for loop in self.training.plan.loops}
        sources = {name: stream.draw() for name, stream in self.streams.items() if name not in looped}
        if step in self._profile:
            self.executor.start_profile()
        self._record(self.training, step, [sources])
        if step in self._profile:
            self.executor.stop_profile(self.folder.below(f"{PROFILE}/step_{step:06d}"))

    def _draw(self, source: str) -> SourceRows:
        return self.streams[source].draw()

    def _evaluate(self, step: int) -> None:
        for one in self.evaluations:
            every = one.pipeline.every
            due = step in (0, self.start.steps) or (every is not None and step % every == 0)
            if due:
                self._record(one, step, evaluation_batches(one))

    def _record(self, planned: Planned, step: int, batches: Sequence[Mapping[str, SourceRows]]) -> None:
        """Walk the plan over the batches and keep the merged metrics."""
        name = planned.pipeline.name
        self._emit(StepStarted(time.time(), name, step))
        started = time.perf_counter()
        self._op_seconds = {}
        metrics: Metrics = merge_all(self.executor.run(planned, step, sources, self._draw) for sources in batches)
        seconds = time.perf_counter() - started
        record = Record(name, step, metrics.numbers(), seconds, self._op_seconds)
        self.records.append(record)
        self.folder.append("metrics", record.to_dict())
        self._emit(StepFinished(time.time(), name, step, seconds, record.metrics))
        self.folder.flush()
        if self._on_record is not None:
            self._on_record(record)

    def _listen(self, event: Event) -> None:
        if isinstance(event, OpFinished):
            self._add_seconds(event.op, event.seconds)
        elif isinstance(event, WeightsSynced):
            self._add_seconds(f"sync_{event.group}", event.seconds)
        elif isinstance(event, PhaseSwitched):
            self._add_seconds(f"phase/{event.action}", event.seconds)
            self._add_seconds("phases", event.seconds)
        self.folder.append("events", event.to_dict())

    def _add_seconds(self, what: str, seconds: float) -> None:
        self._op_seconds[what] = self._op_seconds.get(what, 0.0) + seconds

    def _export(self) -> None:
        """Write every trained model in Hugging Face format: ``model``, or ``model/GROUP`` where there are several."""
        for group, name in _models(self.training).items():
            self.executor.export(group, self.folder.below(name))


def _models(planned: Planned) -> dict[str, str]:
    """The groups that train, and the folder of each one's model."""
    trained = [group.name for group in planned.plan.groups if group.trains]
    return {name: MODEL if len(trained) == 1 else f"{MODEL}/{name}" for name in trained}


def _is_exported(planned: Planned, folder: RunFolder) -> bool:
    return all(folder.exists(f"{name}/config.json") for name in _models(planned).values())
