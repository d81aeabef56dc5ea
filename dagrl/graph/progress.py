"""How far a running node is: the node says, whoever runs it hears."""

from __future__ import annotations

from collections.abc import Callable, Generator
from contextlib import contextmanager
from contextvars import ContextVar

#: Told of how much is done, of how much, and in what unit.
Hearer = Callable[[int, int, str], None]

_hearer: ContextVar[Hearer | None] = ContextVar("hearer", default=None)


class Progress:
    """Counts what a node has done of ``total``; ``unit`` is a plural, such as "rows"."""

    def __init__(self, total: int, unit: str = "rows") -> None:
        self._total = total
        self._unit = unit
        self._done = 0
        self._hearer = _hearer.get()

    def advance(self, count: int = 1) -> None:
        """That many more are done."""
        self._done = min(self._done + count, self._total)
        if self._hearer is not None:
            self._hearer(self._done, self._total, self._unit)


@contextmanager
def progress_heard(hearer: Hearer) -> Generator[None]:
    """Within this block ``hearer`` is told of the progress that is made in the same thread."""
    token = _hearer.set(hearer)
    try:
        yield
    finally:
        _hearer.reset(token)
