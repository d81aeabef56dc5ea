"""What a child does to itself so that no function it runs can outlive it, fill a terminal or leave an alarm ticking."""

from __future__ import annotations

import contextlib
import ctypes
import io
import multiprocessing
import os
import signal
import sys
import threading
from collections.abc import Generator
from multiprocessing import connection, forkserver

_PR_SET_PDEATHSIG = 1
_KEPT = 2000


def stand_alone() -> None:
    """Lead a process group of one's own, die with the parent, be killed by SIGTERM at once, write to no terminal."""
    os.setsid()
    signal.signal(signal.SIGTERM, signal.SIG_DFL)
    os.environ.setdefault("OMP_NUM_THREADS", "1")
    null = os.open(os.devnull, os.O_RDWR)
    for descriptor in (0, 1, 2):
        os.dup2(null, descriptor)
    _die_with_parent()


def _die_with_parent() -> None:
    """Two ways, either of which may fail: a thread ends the group; on Linux the kernel kills a child that is stuck.

    The fork server waits for every holder of its `alive` pipe, this child too, unless the child lets go of it.
    """
    alive = forkserver._forkserver._forkserver_alive_fd  # pyright: ignore
    if alive is not None:
        os.close(alive)
        forkserver._forkserver._forkserver_alive_fd = None  # pyright: ignore
    if sys.platform == "linux":
        ctypes.CDLL(None).prctl(_PR_SET_PDEATHSIG, signal.SIGKILL)
    threading.Thread(target=_end_group_with_parent, daemon=True).start()


def _end_group_with_parent() -> None:
    parent = multiprocessing.parent_process()
    if parent is not None:
        connection.wait([parent.sentinel])
        os.killpg(0, signal.SIGKILL)


def after_call(pid: int) -> None:
    """End a copy of this process that the call forked and let run on; disarm an alarm that the call left."""
    if os.getpid() != pid:
        os._exit(0)
    signal.setitimer(signal.ITIMER_REAL, 0)


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
