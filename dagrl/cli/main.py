"""The ``dagrl`` command: plan here, run, check, nodes and new in files of their own.

Exit codes: 0 done, 2 the user's mistake, 1 a failure, 130 stopped by Ctrl-C, 143 by SIGTERM.
"""

import os
import sys
import traceback

import click

from dagrl import __version__
from dagrl.cli.check import check
from dagrl.cli.machine import Kind, planned_machine
from dagrl.cli.new import new
from dagrl.cli.nodes import nodes
from dagrl.cli.options import EXECUTOR, FILE, SET
from dagrl.cli.output import prepare_output, say
from dagrl.cli.run import run
from dagrl.errors import DagrlError, UserError

# OpenMP threads that spin for each other stall when another process takes a core. A short spin costs nothing on a
# quiet machine and saves a third of the step on a busy one; libgomp reads this once, when torch is loaded.
if "OMP_WAIT_POLICY" not in os.environ:
    os.environ.setdefault("GOMP_SPINCOUNT", "1000")


@click.group(context_settings={"help_option_names": ["-h", "--help"]})
@click.version_option(__version__, prog_name="dagrl")
def cli() -> None:
    """Post-train language models with reinforcement learning, each step a checked and planned graph."""


@cli.command()
@FILE
@SET
@EXECUTOR
@click.option("--json", "as_json", is_flag=True, help="Print the plans as JSON.")
def plan(file: str, assignments: tuple[str, ...], executor: Kind, as_json: bool) -> None:
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


for command in (run, check, nodes, new):
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
