"""The option that says how a run is shown, and what a live view needs."""

from __future__ import annotations

import os
import sys
from typing import Literal

import click

Mode = Literal["live", "lines", "quiet"]
UI = click.option(
    "--ui", type=click.Choice(["live", "lines", "quiet"]),
    help="A live view, a line for each step, or errors and the end only. [default: live on a terminal, else lines]",
)  # fmt: skip


def mode_of(asked: Mode | None) -> Mode:
    """How to show a run.

    Raises:
        UsageError: when a live view is asked for where none can be.
    """
    missing = what_live_lacks()
    if asked == "live" and missing is not None:
        raise click.UsageError(f"`--ui live` needs a terminal, and {missing}: use `--ui lines`")
    return asked or ("lines" if missing is not None else "live")


def what_live_lacks() -> str | None:
    """What is missing here for a live view; None where nothing is."""
    for stream, name in ((sys.stdin, "stdin"), (sys.stdout, "stdout"), (sys.stderr, "stderr")):
        if stream is None or stream.closed or not stream.isatty():  # pyright: ignore[reportUnnecessaryComparison]
            return f"{name} is none"
    terminal = os.environ.get("TERM", "")
    if terminal in ("", "dumb", "unknown"):
        return f"TERM is `{terminal}`"
    if sys.stdout.encoding.lower() not in ("utf-8", "utf8"):
        return f"what it shows is {sys.stdout.encoding}, not UTF-8"
    return None
