"""The keyboard while the live view has it: no process that the run starts takes keys, and who reads is given them."""

from __future__ import annotations

import io
import os
import sys
from collections.abc import Callable
from typing import Any, TextIO


class Keyboard:
    """Descriptor 0 leads nowhere from ``start`` to ``stop``.

    Whoever reads ``sys.stdin`` meanwhile, as a debugger and ``input`` do, has ``on_read`` called first, which is to
    call ``stop``.
    """

    def __init__(self, on_read: Callable[[], None]) -> None:
        self._on_read = on_read
        self._saved = -1
        self._stdin: TextIO = sys.stdin

    def start(self) -> int:
        """Take the keys; a descriptor that they come from still."""
        self._saved = os.dup(0)
        nowhere = os.open(os.devnull, os.O_RDONLY)
        os.dup2(nowhere, 0)
        os.close(nowhere)
        self._stdin, sys.stdin = sys.stdin, _Asking(self)
        return self._saved

    def stop(self) -> None:
        """Give the keys back, once."""
        if self._saved < 0:
            return
        saved, self._saved = self._saved, -1
        os.dup2(saved, 0)
        os.close(saved)
        if isinstance(sys.stdin, _Asking):
            sys.stdin = self._stdin

    def given(self) -> TextIO:
        """The stream, for somebody who wants to read."""
        if self._saved >= 0:
            self._on_read()
        return self._stdin


class _Asking(io.TextIOBase):
    """Stands for ``sys.stdin``; gives the terminal to the first who reads."""

    def __init__(self, keyboard: Keyboard) -> None:
        self._keyboard = keyboard

    def readable(self) -> bool:
        return True

    def fileno(self) -> int:
        return 0

    def read(self, size: int | None = -1, /) -> str:
        return self._keyboard.given().read(-1 if size is None else size)

    def readline(self, size: int = -1, /) -> str:  # pyright: ignore[reportIncompatibleMethodOverride]
        return self._keyboard.given().readline(size)

    @property
    def buffer(self) -> Any:
        """The bytes below the text."""
        return self._keyboard.given().buffer
