"""Rows spread over several servers: few at once for each, tried again elsewhere when a server fails."""

from __future__ import annotations

import asyncio
import random
import time
from collections.abc import Awaitable, Callable, Sequence
from dataclasses import dataclass, field

from dagrl.engines.rollout.base import Response
from dagrl.engines.rollout.server_client import Refused, Server, Unavailable
from dagrl.errors import EngineError

#: How often one row may fail: a row that makes every server fail ends the run, and not the servers.
ROW_TRIES = 6
_FIRST_WAIT, _LONGEST_WAIT = 0.25, 8.0


@dataclass(frozen=True)
class Patience:
    """How many rows a server has at once, and after how many seconds of failures only it is lost.

    With ``keeps_weights`` False a server whose process is gone is lost at once: it would come back with the weights
    it was started with.
    """

    concurrency: int
    seconds: float
    keeps_weights: bool


@dataclass
class _Standing:
    """How a server does: since when it fails only, and the tasks that ask it."""

    failing_since: float | None = None
    tasks: list[asyncio.Task[None]] = field(default_factory=list[asyncio.Task[None]])


class Spread:
    """Has every row drawn by one of the servers, whichever is free; one call of ``run``."""

    def __init__(
        self,
        servers: Sequence[Server],
        num_rows: int,
        ask: Callable[[Server, int], Awaitable[Response]],
        patience: Patience,
    ) -> None:
        self._standings = {server: _Standing() for server in servers if server.lost is None}
        self._servers = servers
        self._ask = ask
        self._patience = patience
        self._waiting: asyncio.Queue[int] = asyncio.Queue()
        self._tries = [0] * num_rows
        self._left = num_rows
        self._jitter = random.Random()

    async def run(self, put: Callable[[tuple[int, Response]], None]) -> None:
        """Hand out the rows as they are drawn.

        Raises:
            EngineError: naming the servers, when none is left, or one that refuses a row.
        """
        self._done: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        self._put = put
        for row in range(self._left):
            self._waiting.put_nowait(row)
        for server, standing in self._standings.items():
            slots = range(min(self._patience.concurrency, self._left))
            standing.tasks = [asyncio.create_task(self._slot(server, standing)) for _ in slots]
        tasks = [task for standing in self._standings.values() for task in standing.tasks]
        for task in tasks:
            task.add_done_callback(self._hear)
        try:
            self._end_if_over()
            await self._done
        finally:
            for task in tasks:
                task.cancel()
            await asyncio.gather(*tasks, return_exceptions=True)

    async def _slot(self, server: Server, standing: _Standing) -> None:
        """Have one row after the other drawn by a server."""
        failures = 0
        while not self._done.done():
            row = await self._waiting.get()
            began = time.monotonic()
            try:
                response = await self._ask(server, row)
            except Unavailable as error:
                self._waiting.put_nowait(row)
                self._note(server, standing, row, error, began)
                await asyncio.sleep(self._wait(failures, error))
                failures += 1
            except asyncio.CancelledError:
                self._waiting.put_nowait(row)  # for the other servers, if this one was lost
                raise
            except Refused as error:
                self._fail(EngineError(f"the server {server.url} refused a row: {error}"))
            else:
                failures, standing.failing_since = 0, None
                self._left -= 1
                self._put((row, response))
                self._end_if_over()

    def _hear(self, task: asyncio.Task[None]) -> None:
        """What nobody expected ends the run."""
        error = None if task.cancelled() else task.exception()
        if error is not None:
            self._fail(error)

    def _note(self, server: Server, standing: _Standing, row: int, error: Unavailable, began: float) -> None:
        """Count a failure, and see whether the server is lost, or the row hopeless."""
        if standing.failing_since is None:
            standing.failing_since = began
        failing = time.monotonic() - standing.failing_since
        weights_gone = error.gone and not self._patience.keeps_weights
        if error.slow or weights_gone or failing >= self._patience.seconds:
            self._lose(server, standing, str(error))
            return
        if not error.gone:
            self._tries[row] += 1
        if self._tries[row] >= ROW_TRIES:
            self._fail(EngineError(f"row {row} failed {ROW_TRIES} times, at last on the server {server.url}: {error}"))

    def _lose(self, server: Server, standing: _Standing, why: str) -> None:
        server.lost = why
        for task in standing.tasks:
            if task is not asyncio.current_task():
                task.cancel()
        standing.tasks = []
        self._end_if_over()

    def _wait(self, failures: int, error: Unavailable) -> float:
        """Seconds before a slot asks its server again: twice as many each time, not all slots at once."""
        backoff = min(_LONGEST_WAIT, _FIRST_WAIT * 2**failures) * self._jitter.uniform(0.5, 1.0)
        return min(self._patience.seconds, max(backoff, error.wait))

    def _end_if_over(self) -> None:
        if self._left == 0 and not self._done.done():
            self._done.set_result(None)
        elif all(server.lost is not None for server in self._servers):
            causes = "; ".join(f"{server.url}: {server.lost}" for server in self._servers)
            self._fail(EngineError(f"no server is left that draws responses ({causes}). Start them again"))

    def _fail(self, error: BaseException) -> None:
        if not self._done.done():
            self._done.set_exception(error)
