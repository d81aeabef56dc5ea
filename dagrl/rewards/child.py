"""What runs in a child: load the function once, call it on rows, turn what happens into scores and failures."""

from __future__ import annotations

import asyncio
import contextlib
import inspect
import os
import pickle
import socket
import sys
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from itertools import repeat
from typing import Any

from dagrl.rewards.board import Board
from dagrl.rewards.frames import read_frame, write_frame
from dagrl.rewards.guard import Printed, after_call, after_calls, captured, stand_alone
from dagrl.rewards.loading import Loaded, Source, import_function, is_async, read_parameters, told
from dagrl.rewards.scores import RowFailure, Scores, as_list
from dagrl.rewards.shapes import Shape

#: Into how many parts rows that fail together are split.
WAYS = 8
_MESSAGE = 500
#: Types that are no coroutine, which to find out costs more than a simple function itself.
_FINISHED = (float, int, bool, dict, list)


@dataclass(frozen=True)
class Chunk:
    """Rows to score: the function's arguments, each as a list of one value for each row."""

    source: Source
    shape: Shape
    num_rows: int
    arguments: dict[str, list[Any]]
    time_limit: float


@dataclass(frozen=True)
class Unreadable:
    """The answer to a task that could not be read: what loading it raised."""

    fault: str


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


def work(tasks: int, board: int) -> None:
    """A reward process' life: begin with the run's paths, then answer one task after the other until there are none."""
    global _state
    stand_alone()
    _state = _State(Board(board))
    os.close(board)
    stream = socket.socket(fileno=tasks)
    first = read_frame(stream)
    if first is not None:
        sys.path[:], folder, sys.argv[:] = pickle.loads(first)
        with contextlib.suppress(OSError):
            os.chdir(folder)
    while (message := read_frame(stream)) is not None:
        write_frame(stream, _answer(message))


def _answer(message: bytes) -> bytes:
    try:
        function, serial, task = pickle.loads(message)
    except Exception as error:  # noqa: BLE001 - loading an object of the user's own class may raise anything
        return pickle.dumps(Unreadable(": ".join(filter(None, told(error, "")))))
    return pickle.dumps(function(serial, task))


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
            return Loaded(fault=", at ".join(filter(None, told(error, source.file))))


def score_chunk(serial: int, chunk: Chunk) -> Scores:
    """Score the rows; whatever an ordinary function does, this returns."""
    with captured() as printed:
        function = _function(serial, chunk.source)
        started = time.perf_counter()
        scoring = _Scoring(serial, chunk, function, printed)
        scoring.run()
        after_calls(scoring.pid)
        scoring.scores.seconds = time.perf_counter() - started
        scoring.scores.printed = printed.take()
    return scoring.scores


class _Scoring:
    """The calls of one chunk."""

    def __init__(self, serial: int, chunk: Chunk, function: Callable[..., Any], printed: Printed) -> None:
        self.chunk = chunk
        self.function = function
        self.scores = Scores.unscored(chunk.num_rows)
        self.printed = printed
        self._serial, self._board, self.pid = serial, state().board, os.getpid()

    def run(self) -> None:
        if self.chunk.shape != "verl":
            self._score_list(0, self.chunk.num_rows)
        elif is_async(self.function):
            self._score_together()
        else:
            self._score_rows()

    def _score_rows(self) -> None:
        """Row after row; what is done for each costs more than a simple function itself, so it is little."""
        begin, call, keep = self._board.next_row, self._call, self.scores.keep
        self._board.enter(self._serial, 0, 1)
        for row, arguments in enumerate(self._rows()):
            begin(row)
            try:
                keep(row, call(arguments))
            except BaseException as error:  # noqa: BLE001 - a row may raise anything, SystemExit too
                after_call()
                self._fail(row, error)
        self._board.leave()

    def _rows(self) -> Iterator[dict[str, Any]]:
        """The arguments of each row."""
        names = tuple(self.chunk.arguments)
        rows = zip(*self.chunk.arguments.values(), strict=True) if names else repeat((), self.chunk.num_rows)
        return map(dict, map(zip, repeat(names), rows))  # pyright: ignore[reportReturnType] - pairs of name and value

    def _score_list(self, first: int, count: int) -> None:
        board = self._board
        board.enter(self._serial, first, count)
        try:
            arguments = {name: values[first : first + count] for name, values in self.chunk.arguments.items()}
            results = as_list(self._call(arguments), count)
            for row, result in enumerate(results, first):
                self._keep_listed(row, result)
        except BaseException as error:  # noqa: BLE001 - a row may raise anything, SystemExit too
            after_call()
            self._split_list(first, count, error)
        board.leave()

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
        self._board.enter(self._serial, 0, self.chunk.num_rows)
        state().run(self._gather())
        after_call()
        self._board.leave()

    async def _gather(self) -> None:
        await asyncio.gather(*(self._await_row(row, arguments) for row, arguments in enumerate(self._rows())))

    async def _await_row(self, row: int, arguments: dict[str, Any]) -> None:
        limit = asyncio.timeout(self.chunk.time_limit)
        try:
            async with limit:
                result = await _result(self.function(**arguments))
            self._keep(row, result)
        except BaseException as error:  # noqa: BLE001 - a row may raise anything, SystemExit too
            after_call()
            if isinstance(error, TimeoutError) and limit.expired():
                self.scores.failures.append(RowFailure(row, timed_out(self.chunk.time_limit)))
            else:
                self._fail(row, error)

    def _call(self, arguments: dict[str, Any]) -> Any:
        returned = self.function(**arguments)
        if type(returned) not in _FINISHED and inspect.isawaitable(returned):
            returned = state().run(returned)
        after_call()
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
        after_calls(pid)
        board.leave()
    return functions[key]
