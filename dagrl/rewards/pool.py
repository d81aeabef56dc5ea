"""The pool of killable processes: pebble starts, feeds and replaces them; this starts it late and ends it whole."""

from __future__ import annotations

import atexit
import contextlib
import os
import signal
import threading
import time
from collections.abc import Callable
from concurrent.futures import Future, wait
from itertools import count
from typing import Any

from pebble import ProcessPool

from dagrl.rewards import child, processes
from dagrl.rewards.board import NUM_CELLS, Board, Entry
from dagrl.rewards.errors import RewardProcessError
from dagrl.rewards.loading import Loaded, Source

#: Seconds that a process may take to begin a task it was sent.
START_LIMIT = 60.0
_KILL_SECONDS = 10.0
_TICK = 0.05
_MAX_RESTARTS = 3


class Task:
    """Work that was sent to some process, and since when."""

    def __init__(self, serial: int, future: Future[Any]) -> None:
        self.serial = serial
        self.future = future
        self.sent = time.monotonic()


class RewardPool:
    """Processes that outlive a step and end with `close`; a dead one is replaced by the next task."""

    def __init__(self, num_processes: int) -> None:
        self.num_processes = num_processes
        self.lock = threading.RLock()
        self.loaded: dict[Source, Loaded] = {}
        #: Measured seconds a row, by function.
        self.rates: dict[Source, float] = {}
        self._context = processes.RewardContext()
        self._cells = self._context.RawArray("d", NUM_CELLS)
        self._board = Board(self._cells)
        self._serials = count(1)
        self._pool: ProcessPool | None = None
        self._groups: set[int] = set()
        self._restarts = 0
        self._owner = os.getpid()

    @property
    def is_ours(self) -> bool:
        """False in a forked copy of the process that made the pool."""
        return self._owner == os.getpid()

    def send(self, function: Callable[..., Any], make: Callable[[int], tuple[Any, ...]]) -> Task:
        """Have a process call ``function(*make(serial))``; starts the processes if there are none."""
        serial = next(self._serials)
        try:
            future = self._running().schedule(function, args=make(serial))
        except RuntimeError:
            self.restart()
            future = self._running().schedule(function, args=make(serial))
        return Task(serial, future)

    def entry(self, task: Task) -> Entry | None:
        """What the task's process is doing."""
        entry = self._board.read(task.serial)
        if entry is not None:
            self._groups.add(entry.pid)
        return entry

    def result_of_load(self, task: Task, limit: float) -> Loaded:
        """What loading the function gave.

        Raises:
            TimeoutError: when it took longer than ``limit`` seconds.
        """
        while not task.future.done():
            wait([task.future], timeout=_TICK)
            entry, now = self.entry(task), time.monotonic()
            since = entry.since if entry is not None and entry.since else now
            if now - since > limit or now - task.sent > START_LIMIT + limit:
                raise TimeoutError
        return task.future.result()

    def succeeded(self) -> None:
        """A task came back: the processes work."""
        self._restarts = 0

    def kill(self, task: Task) -> None:
        """End the task and its process with all that the process started. Pebble waits for a moment that is safe."""
        task.future.cancel()
        deadline = time.monotonic() + _KILL_SECONDS
        while (entry := self.entry(task)) and entry.since and is_alive(entry.pid) and time.monotonic() < deadline:
            with contextlib.suppress(ProcessLookupError, PermissionError):
                os.kill(entry.pid, signal.SIGCONT)  # a process that stopped itself does not see pebble's SIGTERM
            time.sleep(0.005)
        if entry is not None and not is_alive(entry.pid):
            self._end_group(entry.pid)

    def restart(self) -> None:
        """End all processes; the next task starts new ones.

        Raises:
            RewardProcessError: when that has not helped several times in a row.
        """
        self._restarts += 1
        self.stop()
        if self._restarts > _MAX_RESTARTS:
            self._restarts = 0
            raise RewardProcessError(f"reward processes ended as soon as they began, {_MAX_RESTARTS} times in a row")

    def stop(self) -> None:
        """End all processes and what they started."""
        if self._pool is not None:
            self._pool.stop()
            self._pool.join()
            self._pool = None
        for group in list(self._groups):
            self._end_group(group)

    def _running(self) -> ProcessPool:
        if self._pool is None:
            context: Any = self._context
            self._pool = ProcessPool(
                self.num_processes, initializer=child.start, initargs=(self._cells,), context=context
            )
        return self._pool

    def _end_group(self, pid: int) -> None:
        """Kill what is left of the process group that a child led."""
        self._groups.discard(pid)
        if pid > 1:
            with contextlib.suppress(ProcessLookupError, PermissionError):
                os.killpg(pid, signal.SIGKILL)


def is_alive(pid: int) -> bool:
    """True while there is a process of that number."""
    try:
        os.kill(pid, 0)
    except ProcessLookupError:
        return False
    except PermissionError:
        return True
    return True


_pools: dict[int, RewardPool] = {}


def open_pool(num_processes: int) -> RewardPool:
    """The pool of so many processes (0: one for each core, at most 8), shared by all calls."""
    available = num_processes or min(8, len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else 1)
    if available not in _pools or not _pools[available].is_ours:
        _pools[available] = RewardPool(available)
    return _pools[available]


def close_pools() -> None:
    """End every process that scores rewards; a later call starts new ones."""
    pools = [pool for pool in _pools.values() if pool.is_ours]
    _pools.clear()
    for pool in pools:
        with pool.lock:
            pool.stop()
    if pools:
        processes.stop_server()


atexit.register(close_pools)
