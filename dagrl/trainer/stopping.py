"""Stopping a run by a signal: the first lets the step finish, the second ends it at once."""

from __future__ import annotations

import signal
from collections.abc import Callable
from types import FrameType
from typing import Any

SIGNALS = (signal.SIGINT, signal.SIGTERM)


class StoppedNow(KeyboardInterrupt):
    """A second signal came while the run was about to stop."""

    def __init__(self, number: int) -> None:
        super().__init__(signal.Signals(number).name)
        self.number = number


class StopRequest:
    """Hears Ctrl-C and SIGTERM inside its ``with`` block, which the main thread runs; ``signal`` is the first heard.

    ``on_first`` is told of it, inside the handler. A signal that the process ignores, as under nohup, stays ignored.
    """

    def __init__(self, on_first: Callable[[int], None] | None = None) -> None:
        self.signal: int | None = None
        self._on_first = on_first
        self._before: dict[int, Any] = {}

    def __enter__(self) -> StopRequest:
        for number in SIGNALS:
            if signal.getsignal(number) is not signal.SIG_IGN:
                self._before[number] = signal.signal(number, self._hear)
        return self

    def __exit__(self, *exc: object) -> None:
        for number, handler in self._before.items():
            signal.signal(number, handler)
        self._before.clear()

    def _hear(self, number: int, frame: FrameType | None) -> None:
        del frame
        if self.signal is not None:
            raise StoppedNow(number)
        self.signal = number
        if self._on_first is not None:
            self._on_first(number)
