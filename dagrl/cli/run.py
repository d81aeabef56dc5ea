"""``dagrl run``: train with a pipeline, from the start or from a checkpoint."""

from __future__ import annotations

from collections.abc import Generator
from contextlib import contextmanager
from dataclasses import fields
from datetime import datetime
from typing import TYPE_CHECKING, Literal

import click

from dagrl.cli.machine import Kind, machine_of
from dagrl.cli.options import EXECUTOR, FILE, SET, StepNumbers
from dagrl.cli.output import say, warn
from dagrl.cli.run_facts import info_of
from dagrl.cli.stopped import cause, exit_code, resume_command
from dagrl.cli.ui_option import UI, Mode, mode_of
from dagrl.errors import UserError

if TYPE_CHECKING:
    from dagrl.trainer.records import RunResult


@click.command()
@FILE
@SET
@EXECUTOR
@click.option("--address", help="A Ray to join, host:port or auto. [default: RAY_ADDRESS, else the run starts its own]")
@click.option(
    "--node-timeout", type=click.FloatRange(min=0, min_open=True), default=3600.0, show_default=True,
    help="Seconds that one node may take on Ray before the run ends.",
)  # fmt: skip
@click.option("--steps", type=click.IntRange(min=1), help="Steps to train, instead of the pipeline's own.")
@click.option("--seed", type=int, default=0, show_default=True, help="Seed of data order and sampling.")
@click.option("--out", type=str, help="Run folder, any fsspec URL; must be new or empty. [default: runs/PIPELINE-TIME]")
@click.option(
    "--save-every", type=click.IntRange(min=0), default=20, show_default=True,
    help="Steps between checkpoints; the last step is saved too. 0 saves only when a signal stops the run.",
)  # fmt: skip
@click.option("--keep", type=click.IntRange(min=1), default=2, show_default=True, help="Checkpoints to keep.")
@click.option(
    "--resume", type=click.Choice(["never", "auto"]), default="never", show_default=True,
    help="auto: go on in --out from its newest checkpoint, or start where there is none.",
)  # fmt: skip
@click.option(
    "--profile", type=StepNumbers(), default=(), metavar="STEPS",
    help="Steps of which every process writes a trace of torch's profiler, such as 2,3 or 5-8.",
)  # fmt: skip
@UI
@click.pass_context
def run(
    context: click.Context,
    file: str,
    assignments: tuple[str, ...],
    executor: Kind,
    address: str | None,
    node_timeout: float,
    steps: int | None,
    seed: int,
    out: str | None,
    save_every: int,
    keep: int,
    resume: Literal["never", "auto"],
    profile: tuple[int, ...],
    ui: Mode | None,
) -> None:
    """Train with the pipeline in FILE."""
    from dagrl.cli.config import split_assignments
    from dagrl.cli.pipeline_file import load_pipelines
    from dagrl.compiler import check_before_run, compile_pipelines

    if resume == "auto" and out is None:
        raise click.UsageError("`--resume auto` needs `--out`, the folder of the run to go on with")
    mode = mode_of(ui)
    loaded = load_pipelines(file, split_assignments(assignments))
    plans = compile_pipelines(loaded.pipelines, machine_of(executor, address))  # before the slow import of the engines
    check_before_run(loaded.pipelines, plans)

    from dagrl.cli.ui import RunUi

    training = loaded.pipelines[0]
    folder = f"runs/{training.name}-{datetime.now():%Y%m%d-%H%M%S-%f}" if out is None else out
    values = {field.name: getattr(loaded.config, field.name) for field in fields(loaded.config)}
    resuming = resume_command(context, file, folder)
    every = {one.name: one.every for one in loaded.pipelines if one.every is not None}
    info = info_of(plans, folder=folder, resume=resuming, every=every, steers=True)
    go_on = f"go on with: {resuming}"
    ui_of_run = RunUi(mode, info, num_steps=steps or training.steps or 0, seed=seed)
    with _ends_told(context, folder, go_on):
        with ui_of_run:  # before the slow import of the engines, and the start of Ray
            from dagrl.executor.start import make_runtime
            from dagrl.trainer.loop import run as run_pipelines
            from dagrl.trainer.saving import Saving
            from dagrl.trainer.stopping import StopRequest

            runtime = make_runtime(executor, address, node_timeout)
            try:
                result = run_pipelines(
                    loaded.pipelines,
                    out=folder,
                    runtime=runtime,
                    plans=plans,
                    seed=seed,
                    steps=steps,
                    config={"file": str(loaded.file), "executor": executor, "config": values},
                    saving=Saving(save_every, keep),
                    resume=resume,
                    stop=ui_of_run.hears(StopRequest(ui_of_run.announce)),
                    on_start=ui_of_run.started,
                    on_event=ui_of_run.listen,
                    between_steps=ui_of_run.between_steps,
                    profile=profile,
                )
            finally:
                runtime.close()
        _tell_end(result, folder, go_on, ui_of_run.stop_asked_by)
    if result.stopped_by is not None:
        context.exit(exit_code(result.stopped_by))


@contextmanager
def _ends_told(context: click.Context, folder: str, go_on: str) -> Generator[None]:
    """Say of a run that ends before its end what is saved, and how to go on."""
    from dagrl.storage.checkpoints import newest_step
    from dagrl.storage.run_folder import checkpoints_of
    from dagrl.trainer.stopping import StoppedNow

    try:
        yield
    except StoppedNow as stopped:
        warn(f"stopped at once by {cause(stopped.number)}, in the middle of a step; {go_on}")
        context.exit(exit_code(stopped.number))
    except KeyboardInterrupt:
        warn(f"stopped by Ctrl-C; {_saved(newest_step(checkpoints_of(folder)), go_on)}")
        raise
    except UserError:
        raise
    except Exception as error:
        error.add_note(_saved(newest_step(checkpoints_of(folder)), go_on))
        raise


def _saved(step: int | None, go_on: str) -> str:
    if step is None:
        return f"no checkpoint is saved: to start again, {go_on}"
    return f"saved after step {step}; {go_on}"


def _tell_end(result: RunResult, folder: str, go_on: str, key: str | None) -> None:
    from dagrl.storage.run_folder import contents

    if result.stopped_by is not None:
        how = f"stopped by {key or cause(result.stopped_by)} after step {result.step}, saved as {result.saved}"
        warn(f"{how}; {go_on}")
        return
    if result.resumed_from == result.step:
        say(f"nothing is left to do: {folder} is done, with all its {result.step} steps")
    say(f"done: {folder} ({', '.join(contents(folder))})")
