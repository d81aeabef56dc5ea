"""Coroutines in a thread with an event loop of its own, so that the caller may be in a loop or in none."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Coroutine, Generator
from queue import SimpleQueue
from threading import Thread
from typing import Any, TypeVar

T = TypeVar("T")


def items_of(work: Callable[[Callable[[T], None]], Coroutine[Any, Any, None]]) -> Generator[T]:
    """What a coroutine hands out while it runs; it is cancelled when the caller stops listening.

    ``work`` is given the function that hands out. What it raises is raised here, after all that came before.
    """
    items: SimpleQueue[tuple[T] | None] = SimpleQueue()
    loop = asyncio.new_event_loop()
    task = loop.create_task(work(lambda item: items.put((item,))))
    task.add_done_callback(lambda _: items.put(None))
    thread = Thread(target=lambda: loop.run_until_complete(asyncio.wait({task})), name="dagrl-server", daemon=True)
    thread.start()
    try:
        while (item := items.get()) is not None:
            yield item[0]
        task.result()
    finally:
        if not task.done():
            loop.call_soon_threadsafe(task.cancel)
        thread.join()
        loop.close()


def result_of(work: Callable[[], Coroutine[Any, Any, T]]) -> T:
    """What a coroutine returns."""

    async def handing_out(put: Callable[[T], None]) -> None:
        put(await work())

    (result,) = items_of(handing_out)
    return result
