"""Printing that never ends a run: a reader that has gone away and a narrow encoding are no failures."""

import io
import os
import sys


def prepare_output() -> None:
    """Let characters that the terminal's encoding lacks be shown as escapes instead of failing."""
    for stream in (sys.stdout, sys.stderr):
        if isinstance(stream, io.TextIOWrapper):
            stream.reconfigure(errors="backslashreplace")


def say(text: str) -> None:
    """Print a line; once nobody reads (``dagrl run ... | head``), go on in silence."""
    try:
        print(text, flush=True)
    except BrokenPipeError:
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
