"""What the run command says when a signal stops it, and how to go on."""

from __future__ import annotations

import contextlib
import os
import shlex
import signal

import click
from click.core import ParameterSource

#: Options of the run that the command to go on gives itself, or that are for steps which may be done.
_OWN = frozenset({"file", "out", "resume", "profile"})


def resume_command(context: click.Context, file: str, folder: str) -> str:
    """The command line that goes on with a run: every option that was given, in the same folder."""
    words = ["dagrl", "run", file]
    for parameter in context.command.params:
        is_given = context.get_parameter_source(parameter.name or "") is ParameterSource.COMMANDLINE
        if parameter.name in _OWN or not is_given:
            continue
        value = context.params[parameter.name or ""]
        if isinstance(value, bool):
            words += parameter.opts[:1] if value else parameter.secondary_opts[:1]
            continue
        for one in value if isinstance(value, tuple) else (value,):
            words += [parameter.opts[0], str(one)]
    return shlex.join([*words, "--out", folder, "--resume", "auto"])


def cause(number: int) -> str:
    """What the user did."""
    return "Ctrl-C" if number == signal.SIGINT else signal.Signals(number).name


def announce(number: int, key: str | None = None) -> None:
    """Say that the run stops after this step, by a signal or a key that raised it.

    It is written past Python's buffers, which a signal may find in use.
    """
    text = f"{key or cause(number)}: this step is finished and saved first; once more to stop at once\n"
    with contextlib.suppress(OSError):  # a terminal that is gone
        os.write(2, text.encode())


def exit_code(number: int) -> int:
    """What a shell shows of a process that the signal ended."""
    return 128 + number
