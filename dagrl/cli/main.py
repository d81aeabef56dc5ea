"""The ``dagrl`` command: run and plan here, check, nodes and new in files of their own.

Exit codes: 0 done, 2 the user's mistake, 1 a failure, 130 stopped by Ctrl-C, 143 by SIGTERM.
"""

import os
import sys
import traceback
from dataclasses import fields
from datetime import datetime
from typing import Literal

import click

from dagrl import __version__
from dagrl.cli.check import check
from dagrl.cli.machine import machine_of, planned_machine
from dagrl.cli.new import new
from dagrl.cli.nodes import nodes
from dagrl.cli.output import prepare_output, say
from dagrl.cli.stopped import announce, cause, exit_code, resume_command
from dagrl.errors import DagrlError, UserError

# OpenMP threads that spin for each other stall when another process takes a core. A short spin costs nothing on a
# quiet machine and saves a third of the step on a busy one; libgomp reads this once, when torch is loaded.
if "OMP_WAIT_POLICY" not in os.environ:
    os.environ.setdefault("GOMP_SPINCOUNT", "1000")

FILE = click.argument("file", type=click.Path(dir_okay=False))
SET = click.option(
    "--set", "assignments", multiple=True, metavar="KEY=VALUE", help="Set a field of the file's Config; repeatable."
)


EXECUTOR = click.option(
    "--executor", type=click.Choice(["local", "ray"]), default="local", show_default=True,
    help="Where ops run: in this process, or in Ray actors.",
)  # fmt: skip


@click.group(context_settings={"help_option_names": ["-h", "--help"]})
@click.version_option(__version__, prog_name="dagrl")
def cli() -> None:
    """Post-train language models with reinforcement learning, each step a checked and planned graph."""


@cli.command()
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
@click.pass_context
def run(
    context: click.Context,
    file: str,
    assignments: tuple[str, ...],
    executor: Literal["local", "ray"],
    address: str | None,
    node_timeout: float,
    steps: int | None,
    seed: int,
    out: str | None,
    save_every: int,
    keep: int,
    resume: Literal["never", "auto"],
) -> None:
    """Train with the pipeline in FILE."""
    from dagrl.cli.config import split_assignments
    from dagrl.cli.pipeline_file import load_pipelines
    from dagrl.compiler import check_before_run, compile_pipelines

    if resume == "auto" and out is None:
        raise click.UsageError("`--resume auto` needs `--out`, the folder of the run to go on with")
    loaded = load_pipelines(file, split_assignments(assignments))
    plans = compile_pipelines(loaded.pipelines, machine_of(executor, address))  # before the slow import of the engines
    check_before_run(loaded.pipelines, plans)

    from dagrl.cli.progress import ProgressLines, start_line
    from dagrl.executor.start import make_runtime
    from dagrl.storage.run_folder import contents
    from dagrl.trainer.loop import Saving
    from dagrl.trainer.loop import run as run_pipelines
    from dagrl.trainer.stopping import StoppedNow, StopRequest

    training = loaded.pipelines[0]
    folder = f"runs/{training.name}-{datetime.now():%Y%m%d-%H%M%S-%f}" if out is None else out
    progress = ProgressLines(training.name, steps or training.steps or 0)
    values = {field.name: getattr(loaded.config, field.name) for field in fields(loaded.config)}
    go_on = f"go on with: {resume_command(context, file, folder)}"
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
            stop=StopRequest(announce),
            on_start=lambda start: say(start_line(training.name, seed, start)),
            on_record=lambda record: say(progress.line(record)),
        )
    except StoppedNow as stopped:
        print(f"stopped at once by {cause(stopped.number)}, in the middle of a step; {go_on}", file=sys.stderr)
        context.exit(exit_code(stopped.number))
    except KeyboardInterrupt:
        print(f"stopped by Ctrl-C before the first step of {folder}", file=sys.stderr)
        raise
    finally:
        runtime.close()
    if result.stopped_by is not None:
        how = f"stopped by {cause(result.stopped_by)} after step {result.step}, saved as {result.saved}"
        print(f"{how}; {go_on}", file=sys.stderr)
        context.exit(exit_code(result.stopped_by))
    if result.resumed_from == result.step:
        say(f"nothing is left to do: {folder} is done, with all its {result.step} steps")
    say(f"done: {folder} ({', '.join(contents(folder))})")


@cli.command()
@FILE
@SET
@EXECUTOR
@click.option("--json", "as_json", is_flag=True, help="Print the plans as JSON.")
def plan(file: str, assignments: tuple[str, ...], executor: Literal["local", "ray"], as_json: bool) -> None:
    """Check and plan the pipelines in FILE; load and start nothing."""
    from dagrl.cli.config import split_assignments
    from dagrl.cli.pipeline_file import load_pipelines
    from dagrl.cli.plan_text import plan_text
    from dagrl.compiler import compile_pipelines

    plans = compile_pipelines(load_pipelines(file, split_assignments(assignments)).pipelines, planned_machine(executor))
    if as_json:
        say("[\n" + ",\n".join(one.to_json() for one in plans) + "\n]")
    else:
        say("\n\n".join(plan_text(one) for one in plans))


for command in (check, nodes, new):
    cli.add_command(command)


def main() -> None:
    """Entry point of the ``dagrl`` command."""
    sys.exit(_exit_code())


def _exit_code() -> int:
    prepare_output()
    try:
        code = cli.main(standalone_mode=False)
    except UserError as error:
        print(f"{type(error).__name__}: {error.message()}", file=sys.stderr)
        return 2
    except DagrlError as error:
        notes: list[str] = getattr(error, "__notes__", [])
        print("\n  ".join([f"{type(error).__name__}: {error}", *notes]), file=sys.stderr)
        return 1
    except click.ClickException as error:
        error.show()
        return 2
    except (KeyboardInterrupt, click.Abort):
        return 130
    except Exception:  # noqa: BLE001 - the last line of defence: every failure is shown and sets the exit code
        traceback.print_exc()
        return 1
    return code if isinstance(code, int) else 0
