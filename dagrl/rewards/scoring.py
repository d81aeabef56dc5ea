"""Score the rows of one step: send them out in chunks, time them, and corner the rows that hang or kill a process.

An ordinary exception never leaves the child. Rows whose process hangs or dies come back here: the rows that it was at
are sent again in smaller parts until the guilty one is alone. So a row may be scored more than once.
"""

from __future__ import annotations

import time
from collections import deque
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from dagrl.rewards.board import Entry
from dagrl.rewards.child import Chunk, load, parts, score_chunk, timed_out
from dagrl.rewards.errors import RewardProcessError
from dagrl.rewards.loading import Loaded, Source
from dagrl.rewards.pool import ProcessDied, RewardPool, Task, TaskError
from dagrl.rewards.scores import RowFailure, Scores
from dagrl.rewards.shapes import Shape, list_arguments

#: A chunk is sized to take so many seconds; one of several rows is given up on after many times what it should take.
_CHUNK_SECONDS, _LEAST_SECONDS, _PATIENCE = 0.1, 1.0, 20.0
#: Rows that take less together are not worth two processes.
_SMALL_SECONDS = 0.002
_ASYNC_ROWS, _ASYNC_GRACE = 64, 1.0


@dataclass(frozen=True)
class Limits:
    """Seconds for one row and for loading the function, and how many rows may fail before the rest is left."""

    time_limit: float
    load_limit: float
    max_failures: int


def load_function(pool: RewardPool, source: Source, load_limit: float) -> Loaded:
    """Load the function in a process and say what it is; done once for each pool.

    Raises:
        RewardProcessError: when it cannot be loaded, or not in time.
    """
    with pool.lock:
        if source not in pool.loaded:
            pool.loaded[source] = _loaded(pool, source, load_limit)
        loaded = pool.loaded[source]
    if loaded.fault:
        raise RewardProcessError(f"it cannot be loaded: {loaded.fault}")
    return loaded


def _loaded(pool: RewardPool, source: Source, load_limit: float) -> Loaded:
    while True:
        task = pool.send(load, source)
        try:
            return pool.result_of_load(task, load_limit)
        except TimeoutError as error:
            raise RewardProcessError(str(error)) from error
        except ProcessDied as error:
            if task.entry() is not None:
                raise RewardProcessError(f"its process {error} while loading it") from error
        finally:
            if not task.is_over:
                pool.kill(task)


class Scoring:
    """One pass over the rows of a step."""

    def __init__(
        self,
        pool: RewardPool,
        source: Source,
        shape: Shape,
        loaded: Loaded,
        columns: Mapping[str, Sequence[Any]],
        limits: Limits,
        on_scored: Callable[[int], None] | None = None,
    ) -> None:
        """``on_scored`` is told how many more rows have been tried."""
        self.arguments = list_arguments(loaded.parameters, shape, columns)
        self.num_rows = len(columns["response_text"])
        self.scores = Scores.unscored(self.num_rows)
        self._pool, self._source, self._limits = pool, source, limits
        self._shape: Shape = shape
        self._is_async = loaded.is_async
        self._on_scored = on_scored
        self._fresh = range(self.num_rows)
        self._again: deque[tuple[Sequence[int], int]] = deque()
        self._flights: dict[Task, tuple[Sequence[int], int]] = {}

    def run(self) -> Scores:
        """The scores of all rows, or of some when too many fail.

        Raises:
            RewardProcessError: when the function cannot be loaded or no process can be kept.
        """
        with self._pool.lock:
            try:
                while (self._fresh or self._again or self._flights) and not self._has_failed():
                    self._send()
                    self._receive()
                    self._watch()
            finally:
                for task in self._flights:
                    self._pool.kill(task)
        self.scores.failures.sort(key=lambda failure: failure.row)
        return self.scores

    def _has_failed(self) -> bool:
        return len(self.scores.failures) > self._limits.max_failures

    def _send(self) -> None:
        while (self._fresh or self._again) and len(self._flights) < self._pool.num_processes:
            if self._again:
                rows, tries = self._again.popleft()
            else:
                size = self._size()
                rows, tries, self._fresh = self._fresh[:size], 0, self._fresh[size:]
            self._fly(rows, tries)

    def _fly(self, rows: Sequence[int], tries: int) -> None:
        arguments = {name: _of_rows(values, rows) for name, values in self.arguments.items()}
        chunk = Chunk(self._source, self._shape, len(rows), arguments, self._limits.time_limit)
        try:
            self._flights[self._pool.send(score_chunk, chunk)] = (rows, tries)
        except TaskError as error:
            self._corner(rows, 1, None, str(error))

    def _size(self) -> int:
        """Rows of the next chunk: a fair share, less where rows are slow; one while it is not known how slow."""
        share = max(1, -(-self.num_rows // self._pool.num_processes))
        if self._is_async:
            return min(share, _ASYNC_ROWS)
        rate = self._pool.rates.get(self._source)
        if rate is None:
            return 1
        if rate * self.num_rows < _SMALL_SECONDS:
            return self.num_rows
        return min(share, max(1, int(_CHUNK_SECONDS / rate)))

    def _receive(self) -> None:
        for task in self._pool.wait(list(self._flights)):
            rows, tries = self._flights.pop(task)
            try:
                part = task.result()
            except ProcessDied as error:
                self._bury(rows, tries, task.entry(), f"its process {error}")
            except TaskError as error:
                self._corner(rows, 1, None, str(error))
            else:
                self._measure(part.seconds / len(rows))
                self.scores.place(rows, part)
                if self._on_scored is not None:
                    self._on_scored(len(rows))

    def _bury(self, rows: Sequence[int], tries: int, entry: Entry | None, cause: str) -> None:
        if entry is None:
            self._again.append((rows, tries))  # it had not begun: the rows are not to blame
        else:
            self._corner(rows, tries, entry, cause)

    def _measure(self, rate: float) -> None:
        known = self._pool.rates.get(self._source, rate)
        self._pool.rates[self._source] = max(rate, 0.7 * known + 0.3 * rate)

    def _watch(self) -> None:
        """Look for calls past their limit, and for processes that do not begin or do not answer."""
        for task in list(self._flights):
            entry = task.entry()
            if entry is not None and entry.since:
                task.heard = time.monotonic()
                if task.heard - entry.since > self._budget(entry.count):
                    self._stop(task, entry)
            elif task.is_silent:
                rows, tries = self._flights.pop(task)
                self._pool.give_up(task)
                self._bury(rows, tries, entry, "its process did not answer")

    def _stop(self, task: Task, entry: Entry) -> None:
        rows, _ = self._flights.pop(task)
        self._pool.kill(task)
        if entry.count == 0:
            raise RewardProcessError(f"loading it took longer than {self._limits.load_limit:g} seconds")
        if entry.count == 1:
            self._fail(rows[entry.first], timed_out(self._limits.time_limit))
            self._put_back(rows[: entry.first], rows[entry.first + 1 :])
        else:
            self._measure(self._budget(entry.count) / entry.count)
            self._corner(rows, 1, entry, timed_out(self._limits.time_limit))

    def _budget(self, num_rows: int) -> float:
        """Seconds for a call. Several rows are given up on early: they are only sent again in parts."""
        limit = self._limits.time_limit
        if num_rows == 0:
            return self._limits.load_limit
        if self._is_async:
            return limit + _ASYNC_GRACE
        expected = self._pool.rates.get(self._source, limit) * num_rows
        return limit if num_rows == 1 else min(limit, max(_LEAST_SECONDS, _PATIENCE * expected))

    def _corner(self, rows: Sequence[int], tries: int, entry: Entry | None, cause: str) -> None:
        """Send the rows that the process was at again in parts; a single row once more, then it has failed."""
        first, count = (entry.first, entry.count) if entry is not None and entry.count else (0, len(rows))
        blamed = rows[first : first + count]
        self._put_back(rows[:first], rows[first + count :])
        if len(blamed) > 1:
            self._again.extend((_pick(blamed, part), 0) for part in parts(range(len(blamed))))
        elif tries == 0 or len(rows) > 1:
            self._again.append((blamed, 1))
        else:
            self._fail(blamed[0], cause)

    def _put_back(self, *groups: Sequence[int]) -> None:
        self._again.extend((rows, 0) for rows in groups if rows)

    def _fail(self, row: int, cause: str) -> None:
        self.scores.failures.append(RowFailure(row, cause))


def _of_rows(values: Sequence[Any], rows: Sequence[int]) -> list[Any]:
    if isinstance(rows, range):
        return list(values[rows.start : rows.stop])
    return [values[row] for row in rows]


def _pick(rows: Sequence[int], places: range) -> Sequence[int]:
    return rows[places.start : places.stop]
