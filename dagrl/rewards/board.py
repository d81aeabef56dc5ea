"""A few numbers in shared memory by which a process says what it is doing, so that the run can time single rows."""

from __future__ import annotations

import mmap
import os
import sys
import tempfile
import time
from dataclasses import dataclass

_SIZE = mmap.PAGESIZE
_SERIAL, _FIRST, _COUNT, _SINCE = range(4)


@dataclass(frozen=True)
class Entry:
    """The process has been at ``count`` rows from ``first`` on since ``since`` (monotonic; 0: between calls).

    A count of 0 stands for loading the function.
    """

    first: int
    count: int
    since: float


class Board:
    """What one process is at, over memory that it shares with the run: the file ``descriptor``."""

    def __init__(self, descriptor: int) -> None:
        self._cells = memoryview(mmap.mmap(descriptor, _SIZE)).cast("d")

    def enter(self, serial: int, first: int, count: int) -> None:
        """A call on these rows of the task begins."""
        cells = self._cells
        cells[_SINCE] = 0.0
        cells[_SERIAL], cells[_FIRST], cells[_COUNT] = serial, first, count
        cells[_SINCE] = time.monotonic()

    def next_row(self, row: int) -> None:
        """The call on a single row begins, after one on another row of the same task.

        The time goes first: whoever reads in between gives the earlier row too much time, never the later too little.
        """
        cells = self._cells
        cells[_SINCE] = time.monotonic()
        cells[_FIRST] = row

    def leave(self) -> None:
        """The call is over."""
        self._cells[_SINCE] = 0.0

    def read(self, serial: int) -> Entry | None:
        """What the process is at, None before it has begun this task."""
        number, first, count, since = (self._cells[place] for place in (_SERIAL, _FIRST, _COUNT, _SINCE))
        return Entry(int(first), int(count), since) if number == serial else None


def new_board() -> int:
    """A file of a board's size that has no name, in memory where there is such a thing."""
    if sys.platform == "linux":
        descriptor = os.memfd_create("dagrl-reward-board")
    else:
        with tempfile.TemporaryFile() as file:
            descriptor = os.dup(file.fileno())
    os.ftruncate(descriptor, _SIZE)
    return descriptor
