"""The pool of killable processes: starts one when there is work for it, replaces it when it dies, ends all of them."""

from __future__ import annotations

import atexit
import os
import pickle
import sys
import threading
import time
from collections.abc import Callable
from itertools import count
from typing import Any

from dagrl.rewards.board import Entry
from dagrl.rewards.child import Unreadable
from dagrl.rewards.errors import RewardProcessError
from dagrl.rewards.loading import Loaded, Source
from dagrl.rewards.processes import ForkServer, Process, wait_for
from dagrl.rewards.reference import find_function

#: Seconds that a process may take to begin a task it was sent, or to answer when it is done.
_SILENT_SECONDS = 30.0
_TICK = 0.05
_MAX_EARLY_DEATHS = 3


class ProcessDied(Exception):
    """A task whose process ended before it answered; the text says how."""


class TaskError(Exception):
    """A task that could not be sent, or whose answer cannot be read."""


class Task:
    """Work that was sent to a process."""

    def __init__(self, serial: int, process: Process) -> None:
        self.serial = serial
        self.process = process
        #: When the process was last known to be at a call.
        self.heard = time.monotonic()
        self.answer: bytes | None = None

    @property
    def is_silent(self) -> bool:
        """True when the process has been at no call for longer than it takes to begin or to answer."""
        return time.monotonic() - self.heard > _SILENT_SECONDS

    @property
    def is_over(self) -> bool:
        """True when there is an answer, or none will come."""
        return self.answer is not None or self.process.cause is not None

    def entry(self) -> Entry | None:
        """What the process is at, None before it has begun."""
        return self.process.entry(self.serial)

    def result(self) -> Any:
        """What the task returned.

        Raises:
            ProcessDied, TaskError: when it returned nothing.
        """
        if self.answer is None:
            raise ProcessDied(self.process.cause or "was lost")
        try:
            result = pickle.loads(self.answer)
        except Exception as error:
            raise TaskError(f"its result cannot be read: {type(error).__name__}: {error}"[:500]) from error
        if isinstance(result, Unreadable):
            raise TaskError(f"the row cannot be read in another process: {result.fault}")
        return result


class RewardPool:
    """Processes that outlive a step and end with `stop`."""

    def __init__(self, num_processes: int) -> None:
        self.num_processes = num_processes
        self.lock = threading.RLock()
        self.loaded: dict[Source, Loaded] = {}
        self._sources: dict[tuple[str, str, tuple[str, ...]], Source] = {}
        #: Measured seconds a row, by function.
        self.rates: dict[Source, float] = {}
        #: The names of data rows' fields that a function has been offered.
        self.fields: dict[Source, frozenset[str]] = {}
        self._server = ForkServer()
        self._serials = count(1)
        self._idle: list[Process] = []
        self._busy: dict[Task, Process] = {}
        self._early_deaths = 0
        self._owner = os.getpid()

    @property
    def is_ours(self) -> bool:
        """False in a forked copy of the process that made the pool."""
        return self._owner == os.getpid()

    def find(self, reference: str) -> Source:
        """Where the function of a reference is; read once, since a file of some length takes milliseconds.

        Raises:
            RewardReferenceError: when it is nowhere.
        """
        key = (reference, os.getcwd(), tuple(sys.path))
        if key not in self._sources:
            self._sources[key] = find_function(reference).source
        return self._sources[key]

    def send(self, function: Callable[[int, Any], Any], task: Any) -> Task:
        """Have an idle process, or a new one, call ``function(serial, task)``.

        Raises:
            TaskError: when the task cannot be sent.
            RewardProcessError: when processes do not start.
        """
        serial = next(self._serials)
        try:
            message = pickle.dumps((function, serial, task), protocol=5)
        except Exception as error:
            raise TaskError(f"{type(error).__name__}: {error}"[:500]) from error
        sent = Task(serial, self._process())
        self._busy[sent] = sent.process
        sent.process.send(message)
        return sent

    def wait(self, tasks: list[Task], seconds: float = _TICK) -> list[Task]:
        """Wait a moment; the tasks that are over, whose processes are idle again or gone."""
        wait_for([task.process for task in tasks], seconds)
        for task in tasks:
            task.answer = task.process.receive()
        over = [task for task in tasks if task.is_over]
        for task in over:
            self._settle(task)
        return over

    def result_of_load(self, task: Task, limit: float) -> Loaded:
        """What loading the function gave.

        Raises:
            TimeoutError: when it took longer than ``limit`` seconds, or the process does not begin or answer.
            ProcessDied: when the process ended.
        """
        while not self.wait([task]):
            entry = task.entry()
            if entry is not None and entry.since:
                task.heard = time.monotonic()
                if task.heard - entry.since > limit:
                    raise TimeoutError(f"loading it took longer than {limit:g} seconds")
            if task.is_silent:
                raise TimeoutError(f"its process did not answer for {_SILENT_SECONDS:g} seconds while loading it")
        return task.result()

    def kill(self, task: Task) -> None:
        """End the task's process with all that it started."""
        self._busy.pop(task, None)
        task.process.end()

    def give_up(self, task: Task) -> None:
        """Kill the process of a task that it does not begin or answer.

        Raises:
            RewardProcessError: when several in a row did not begin.
        """
        task.process.end()
        self._settle(task)

    def stop(self) -> None:
        """End all processes and what they started."""
        processes = [*self._idle, *self._busy.values()]
        self._idle.clear()
        self._busy.clear()
        for process in processes:
            process.ask_to_end()
        for process in processes:
            process.end()
        self._server.stop()

    def _process(self) -> Process:
        while self._idle:
            process = self._idle.pop()
            process.receive()
            if process.cause is None:
                return process
        return Process(self._server)

    def _settle(self, task: Task) -> None:
        process = self._busy.pop(task, None)
        if process is None:
            return
        if process.cause is None:
            self._idle.append(process)
        if task.answer is not None or task.entry() is not None:
            self._early_deaths = 0
        else:
            self._early_deaths += 1
        if self._early_deaths > _MAX_EARLY_DEATHS:
            self._early_deaths = 0
            raise RewardProcessError(
                f"reward processes ended as soon as they began, the last of {_MAX_EARLY_DEATHS + 1} {process.cause}"
            )


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


atexit.register(close_pools)
