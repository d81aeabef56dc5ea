"""What runs in a child: load the function once, call it on rows, turn what happens into scores and failures."""

from __future__ import annotations

import asyncio
import inspect
import os
import signal
import time
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from dagrl.rewards.board import Board
from dagrl.rewards.guard import Printed, after_call, captured, stand_alone
from dagrl.rewards.loading import Loaded, Source, import_function, is_async, read_parameters, told
from dagrl.rewards.scores import RowFailure, Scores, as_list
from dagrl.rewards.shapes import Shape, list_arguments, row_arguments, taken

#: Into how many parts rows that fail together are split.
WAYS = 8
_MESSAGE = 500
#: Types that are no coroutine, which to find out costs more than a simple function itself.
_FINISHED = (float, int, bool, dict, list)


@dataclass(frozen=True)
class Chunk:
    """Rows to score: whole columns of them, and how to call the function."""

    serial: int
    source: Source
    shape: Shape
    num_rows: int
    columns: dict[str, list[Any]]
    time_limit: float


class _State:
    """What one child keeps between chunks."""

    def __init__(self, board: Board) -> None:
        self.board = board
        self.functions: dict[tuple[str, str], Callable[..., Any]] = {}
        self.runner: asyncio.Runner | None = None

    def run(self, awaitable: Any) -> Any:
        """The result of a coroutine; one event loop serves the child's whole life."""
        self.runner = self.runner or asyncio.Runner()
        return self.runner.run(_result(awaitable))


_state: _State | None = None


def start(cells: Any) -> None:
    """Begin the child's life."""
    global _state
    stand_alone()
    _state = _State(Board(cells))


def state() -> _State:
    """The child's own state."""
    if _state is None:
        raise RuntimeError("this process is no reward child")
    return _state


def load(serial: int, source: Source) -> Loaded:
    """Load the function and read its signature."""
    with captured():
        try:
            function = _function(serial, source)
            return Loaded(read_parameters(function), is_async(function))
        except BaseException as error:  # noqa: BLE001 - importing a user's file can raise anything, SystemExit too
            return Loaded(fault=": ".join(filter(None, told(error, source.file))))


def score_chunk(chunk: Chunk) -> Scores:
    """Score the rows; whatever an ordinary function does, this returns."""
    with captured() as printed:
        function = _function(chunk.serial, chunk.source)
        started = time.perf_counter()
        scoring = _Scoring(chunk, function, printed)
        scoring.run()
        scoring.scores.seconds = time.perf_counter() - started
        scoring.scores.printed = printed.take()
        signal.signal(signal.SIGTERM, signal.SIG_DFL)
    return scoring.scores


class _Scoring:
    """The calls of one chunk."""

    def __init__(self, chunk: Chunk, function: Callable[..., Any], printed: Printed) -> None:
        self.chunk = chunk
        self.function = function
        self.parameters = read_parameters(function)
        self.scores = Scores.unscored(chunk.num_rows)
        self.printed = printed
        self._board, self._pid = state().board, os.getpid()

    def run(self) -> None:
        if self.chunk.shape != "verl":
            self._score_list(0, self.chunk.num_rows)
        elif is_async(self.function):
            self._score_together()
        else:
            for row in range(self.chunk.num_rows):
                self._score_row(row)

    def _score_row(self, row: int) -> None:
        board, serial = self._board, self.chunk.serial
        board.enter(serial, row, 1)
        try:
            result = self._call(taken(self.parameters, row_arguments(self.chunk.columns, row)))
            self._keep(row, result)
        except BaseException as error:  # noqa: BLE001 - a row may raise anything, SystemExit too
            after_call(self._pid)
            self._fail(row, error)
        board.leave(serial)

    def _score_list(self, first: int, count: int) -> None:
        board, serial = self._board, self.chunk.serial
        board.enter(serial, first, count)
        try:
            arguments = list_arguments(
                self.parameters, self.chunk.shape, self.chunk.columns, slice(first, first + count)
            )
            results = as_list(self._call(arguments), count)
            for row, result in enumerate(results, first):
                self._keep_listed(row, result)
        except BaseException as error:  # noqa: BLE001 - a row may raise anything, SystemExit too
            after_call(self._pid)
            self._split_list(first, count, error)
        board.leave(serial)

    def _keep_listed(self, row: int, result: Any) -> None:
        try:
            self._keep(row, result)
        except BaseException as error:  # noqa: BLE001 - a foreign number's own code may raise anything
            self._fail(row, error)

    def _split_list(self, first: int, count: int, error: BaseException) -> None:
        """Fail a single row; call the function again on parts of several."""
        if count == 1:
            self._fail(first, error)
            return
        if not self.scores.notes:
            what = told(error, self.chunk.source.file)[0]
            self.scores.notes.append(f"{what}, in a call on {count} rows: it was called again on fewer")
        for part in parts(range(first, first + count)):
            self._score_list(part[0], len(part))

    def _score_together(self) -> None:
        """The rows of an async function on one row, all at once; each is given up at the limit."""
        board, serial = self._board, self.chunk.serial
        board.enter(serial, 0, self.chunk.num_rows)
        state().run(self._gather())
        after_call(self._pid)
        board.leave(serial)

    async def _gather(self) -> None:
        await asyncio.gather(*(self._await_row(row) for row in range(self.chunk.num_rows)))

    async def _await_row(self, row: int) -> None:
        arguments = taken(self.parameters, row_arguments(self.chunk.columns, row))
        limit = asyncio.timeout(self.chunk.time_limit)
        try:
            async with limit:
                result = await _result(self.function(**arguments))
            self._keep(row, result)
        except BaseException as error:  # noqa: BLE001 - a row may raise anything, SystemExit too
            if os.getpid() != self._pid:
                os._exit(0)
            if isinstance(error, TimeoutError) and limit.expired():
                self.scores.failures.append(RowFailure(row, timed_out(self.chunk.time_limit)))
            else:
                self._fail(row, error)

    def _call(self, arguments: dict[str, Any]) -> Any:
        returned = self.function(**arguments)
        if type(returned) not in _FINISHED and inspect.isawaitable(returned):
            returned = state().run(returned)
        after_call(self._pid)
        return returned

    def _keep(self, row: int, result: Any) -> None:
        self.scores.keep(row, result, may_decline=self.chunk.shape == "trl")

    def _fail(self, row: int, error: BaseException) -> None:
        what, at = told(error, self.chunk.source.file)
        self.scores.failures.append(RowFailure(row, what, at, self.printed.take()[:_MESSAGE]))


def parts(rows: range) -> list[range]:
    """The rows in up to ``WAYS`` parts of about equal size."""
    size = -(-len(rows) // WAYS)
    return [rows[start : start + size] for start in range(0, len(rows), size)]


def timed_out(limit: float) -> str:
    """What is said of a row that took longer."""
    return f"took longer than time_limit={limit:g} seconds"


async def _result(awaitable: Any) -> Any:
    return await awaitable if inspect.isawaitable(awaitable) else awaitable


def _function(serial: int, source: Source) -> Callable[..., Any]:
    functions, board = state().functions, state().board
    key = (source.module or source.file, source.name)
    if key not in functions:
        pid = os.getpid()
        board.enter(serial, 0, 0)
        functions[key] = import_function(source)
        after_call(pid)
        board.leave(serial)
    return functions[key]
