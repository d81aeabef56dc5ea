"""A few numbers in shared memory by which a child says what it is doing, so that its parent can time single rows."""

from __future__ import annotations

import os
import time
from dataclasses import dataclass
from typing import Any

#: Tasks in flight are far fewer; a slot is used again after this many tasks.
SLOTS = 1024
_FIELDS = 5
NUM_CELLS = SLOTS * _FIELDS


@dataclass(frozen=True)
class Entry:
    """Process ``pid`` has been at ``count`` rows from ``first`` on since ``since`` (monotonic; 0: between calls).

    A count of 0 stands for loading the function.
    """

    pid: int
    first: int
    count: int
    since: float


class Board:
    """The slots of all tasks, over a shared array of doubles; task ``serial`` has slot ``serial % SLOTS``."""

    def __init__(self, cells: Any) -> None:
        self._cells = memoryview(cells).cast("B").cast("d")
        self._pid = os.getpid()

    def enter(self, serial: int, first: int, count: int) -> None:
        """A call on these rows of the task begins."""
        base = serial % SLOTS * _FIELDS
        cells = self._cells
        cells[base + 4] = 0.0
        cells[base], cells[base + 1] = serial, self._pid
        cells[base + 2], cells[base + 3] = first, count
        cells[base + 4] = time.monotonic()

    def leave(self, serial: int) -> None:
        """The call is over."""
        self._cells[serial % SLOTS * _FIELDS + 4] = 0.0

    def read(self, serial: int) -> Entry | None:
        """What the task's process is doing, None before it has begun."""
        base = serial % SLOTS * _FIELDS
        number, pid, first, count, since = (self._cells[base + place] for place in range(_FIELDS))
        return Entry(int(pid), int(first), int(count), since) if number == serial else None
