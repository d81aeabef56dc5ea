"""What a child does so that no function it runs can fill a terminal, run on twice or leave an alarm ticking."""

from __future__ import annotations

import contextlib
import functools
import io
import os
import signal
import sys
from collections.abc import Callable, Generator
from typing import ParamSpec, TypeVar

P = ParamSpec("P")
R = TypeVar("R")

_KEPT = 2000


def stand_alone() -> None:
    """Lead a process group of one's own, ignore Ctrl-C, write to no terminal."""
    os.setsid()
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    os.environ.setdefault("OMP_NUM_THREADS", "1")
    null = os.open(os.devnull, os.O_RDWR)
    for descriptor in (0, 1, 2):
        os.dup2(null, descriptor)
    os.close(null)
    note_forks_and_alarms()


class _Noted:
    """What calls did that needs undoing: asking the kernel after each row costs more than a simple function."""

    is_copy = False
    has_alarm = False


def note_forks_and_alarms() -> None:
    """Have `after_call` know of forks and alarms; those made past Python's own functions wait for `after_calls`."""
    os.register_at_fork(after_in_child=lambda: setattr(_Noted, "is_copy", True))
    signal.alarm, signal.setitimer = _noting(signal.alarm), _noting(signal.setitimer)


def _noting(function: Callable[P, R]) -> Callable[P, R]:
    @functools.wraps(function)
    def noting(*args: P.args, **kwargs: P.kwargs) -> R:
        _Noted.has_alarm = True
        return function(*args, **kwargs)

    return noting


def after_call() -> None:
    """End a copy of this process that the call forked and let run on; disarm an alarm that the call left."""
    if _Noted.is_copy:
        os._exit(0)
    if _Noted.has_alarm:
        _disarm()


def after_calls(pid: int) -> None:
    """As `after_call`, by what the kernel says; ``pid`` is that of the process before the calls."""
    if os.getpid() != pid:
        os._exit(0)
    _disarm()


def _disarm() -> None:
    signal.setitimer(signal.ITIMER_REAL, 0)
    _Noted.has_alarm = False


class Printed(io.RawIOBase):
    """Takes what is printed and keeps its beginning."""

    def __init__(self) -> None:
        self.kept = b""

    def writable(self) -> bool:
        """Always."""
        return True

    def write(self, data: bytes, /) -> int:  # pyright: ignore[reportIncompatibleMethodOverride]
        """Keep up to the limit, drop the rest."""
        if len(self.kept) < _KEPT:
            self.kept += bytes(data[: _KEPT - len(self.kept)])
        return len(data)

    def take(self) -> str:
        """What was kept since the last time."""
        kept, self.kept = self.kept, b""
        return kept.decode("utf-8", "replace").strip()


@contextlib.contextmanager
def captured() -> Generator[Printed]:
    """Keep a sample of what is printed in the block."""
    printed = Printed()
    # A raw stream has no `name`, which typeshed asks for and the wrapper does not need.
    stream = io.TextIOWrapper(printed, encoding="utf-8", errors="replace", write_through=True)  # pyright: ignore[reportArgumentType]
    sys.stdout = sys.stderr = stream
    try:
        yield printed
    finally:
        sys.stdout, sys.stderr = sys.__stdout__, sys.__stderr__
