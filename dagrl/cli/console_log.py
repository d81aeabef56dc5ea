"""The console of this process in a file, while the live view has the terminal: all that is written, also by C code."""

from __future__ import annotations

import contextlib
import ctypes
import os
import sys
import tempfile
from pathlib import Path

from dagrl.storage.run_folder import CONSOLE

_STREAMS = (1, 2)
_CHUNK = 1 << 20
#: Bytes of the end that are looked at for a line that is not over.
_MOST_OPEN = 1000


class ConsoleLog:
    """Descriptors 1 and 2 lead into a file from ``start`` to ``stop``: a nameless one until ``keep_in`` gives a place.

    Processes that were started before then go on writing to the nameless file; ``stop`` brings that along.
    """

    def __init__(self) -> None:
        self._spool = tempfile.TemporaryFile()  # noqa: SIM115 - open as long as this is
        self._file = self._spool.fileno()
        self._path: Path | None = None
        self._spooled = 0
        self._told = 0
        self._saved: dict[int, int] = {}

    def start(self) -> int:
        """Send everything into the file; a descriptor that leads to the terminal still."""
        _flush()
        self._saved = {stream: os.dup(stream) for stream in _STREAMS}
        self._redirect()
        return self._saved[1]

    def keep_in(self, folder: Path) -> None:
        """Have the file be ``console.log`` in the folder; it goes on where a former run has left one.

        Raises:
            OSError: when that cannot be opened; the nameless file stays then.
        """
        _flush()
        path = folder / CONSOLE
        self._file = os.open(path, os.O_RDWR | os.O_CREAT | os.O_APPEND | os.O_CLOEXEC, 0o666)
        self._path = path
        self._told = os.fstat(self._file).st_size
        self._bring_spool()
        self._redirect()

    def new_text(self, most: int) -> str:
        """The end of what was written since the last time."""
        _flush_python()
        try:
            size = os.fstat(self._file).st_size
            start, self._told = max(self._told, size - most), size
            return os.pread(self._file, size - start, start).decode("utf-8", "replace") if size > start else ""
        except OSError:  # a node that closes every descriptor, as a daemon does, has closed this one too
            return ""

    def open_line(self) -> str:
        """What was written without an end of the line so far, such as a question."""
        self._told = max(0, self._told - _MOST_OPEN)
        return self.new_text(_MOST_OPEN).rpartition("\n")[2]

    def content(self) -> bytes:
        """All of it."""
        size = os.fstat(self._file).st_size
        return os.pread(self._file, size, 0)

    def stop(self) -> None:
        """Give the descriptors back, once."""
        _flush()
        for stream, saved in self._saved.items():
            os.dup2(saved, stream)
            os.close(saved)
        self._saved = {}
        if self._path is not None:
            self._bring_spool()

    def _redirect(self) -> None:
        for stream in _STREAMS:
            os.dup2(self._file, stream)

    def _bring_spool(self) -> None:
        """Append what has come to the nameless file since the last time, as far as there is room on the disk."""
        spool = self._spool.fileno()
        with contextlib.suppress(OSError):
            # Its position is shared with those who write to it.
            while content := os.pread(spool, _CHUNK, self._spooled):
                self._spooled += os.write(self._file, content)


def _flush_python() -> None:
    for stream in (sys.stdout, sys.stderr):
        with contextlib.suppress(OSError, ValueError, AttributeError):  # users put all kinds of things there
            stream.flush()


def _flush() -> None:
    """Have everything written that waits in a buffer, also in those of C."""
    _flush_python()
    ctypes.CDLL(None).fflush(None)
