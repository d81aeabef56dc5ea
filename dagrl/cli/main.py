"""The ``dagrl`` command; each of its commands is in a file of its own.

Exit codes: 0 done, 2 the user's mistake, 1 a failure, 130 stopped by Ctrl-C, 143 by SIGTERM.
"""

import os
import sys
import traceback

import click

from dagrl import __version__
from dagrl.cli.check import check
from dagrl.cli.new import new
from dagrl.cli.nodes import nodes
from dagrl.cli.output import prepare_output, warn
from dagrl.cli.plan import plan
from dagrl.cli.run import run
from dagrl.cli.view import view
from dagrl.errors import DagrlError, UserError

# OpenMP threads that spin for each other stall when another process takes a core. A short spin costs nothing on a
# quiet machine and saves a third of the step on a busy one; libgomp reads this once, when torch is loaded.
if "OMP_WAIT_POLICY" not in os.environ:
    os.environ.setdefault("GOMP_SPINCOUNT", "1000")


@click.group(context_settings={"help_option_names": ["-h", "--help"]})
@click.version_option(__version__, prog_name="dagrl")
def cli() -> None:
    """Post-train language models with reinforcement learning, each step a checked and planned graph."""


for command in (plan, run, view, check, nodes, new):
    cli.add_command(command)


def main() -> None:
    """Entry point of the ``dagrl`` command."""
    sys.exit(_exit_code())


def _exit_code() -> int:
    prepare_output()
    try:
        code = cli.main(standalone_mode=False)
    except UserError as error:
        warn(f"{type(error).__name__}: {error.message()}")
        return 2
    except DagrlError as error:
        notes: list[str] = getattr(error, "__notes__", [])
        warn("\n  ".join([f"{type(error).__name__}: {error}", *notes]))
        return 1
    except click.ClickException as error:
        error.show()
        return 2
    except (KeyboardInterrupt, click.Abort):
        return 130
    except Exception:  # noqa: BLE001 - the last line of defence: every failure is shown and sets the exit code
        warn(traceback.format_exc().rstrip("\n"))
        return 1
    return code if isinstance(code, int) else 0
