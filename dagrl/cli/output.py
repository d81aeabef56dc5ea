"""Printing that never ends a run: a reader that has gone away, a full disk and a narrow encoding are no failures."""

import errno
import io
import os
import sys
from typing import TextIO

#: A pipe that nobody reads, and a terminal that was closed.
_GONE = (errno.EPIPE, errno.EIO)
#: Signs for control characters, but for line breaks and tabs.
_VISIBLE = {
    **{code: chr(0x2400 + code) for code in range(32) if code not in (9, 10)},
    **dict.fromkeys(range(127, 160), "\N{REPLACEMENT CHARACTER}"),
}


def prepare_output() -> None:
    """Let characters that the terminal's encoding lacks be shown as escapes; keep closed standard descriptors taken.

    A file that is opened later would get the number of one that is closed, and with it what is meant for the terminal.
    """
    for number in range(3):
        try:
            os.fstat(number)
        except OSError:
            os.open(os.devnull, os.O_RDWR)
    for stream in (sys.stdout, sys.stderr):
        if isinstance(stream, io.TextIOWrapper):
            stream.reconfigure(errors="backslashreplace")


def say(text: str) -> None:
    """Print a line; once nobody reads (``dagrl run ... | head``), go on in silence."""
    _print(text, sys.stdout, 1)


def warn(text: str) -> None:
    """Print text on stderr, like ``say``; what a node or a file has put into it is shown, and never obeyed."""
    _print(text.replace("\r\n", "\n").translate(_VISIBLE), sys.stderr, 2)


def _print(text: str, stream: TextIO | None, number: int) -> None:
    if stream is None:
        return
    try:
        print(text, file=stream, flush=True)
    except (ValueError, AttributeError):  # somebody has closed it, or put another thing in its place
        pass
    except OSError as error:
        if error.errno in _GONE:
            os.dup2(os.open(os.devnull, os.O_WRONLY), number)
