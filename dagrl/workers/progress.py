"""Progress of a running node, passed on now and then."""

from __future__ import annotations

import time
from collections.abc import Callable

#: Seconds before the first time that progress is passed on, and between two times: short ops tell nothing.
EVERY = 0.4


class Throttled:
    """Hears all progress of one op, and passes some of it on."""

    def __init__(self, tell: Callable[[int, int, str], None]) -> None:
        self._tell = tell
        self._next = time.monotonic() + EVERY

    def __call__(self, done: int, total: int, unit: str) -> None:
        """Pass it on, if the last time was long ago."""
        now = time.monotonic()
        if now >= self._next:
            self._next = now + EVERY
            self._tell(done, total, unit)
