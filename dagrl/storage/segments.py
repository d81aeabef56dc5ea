"""JSON lines in numbered segments, ``metrics/000000.jsonl`` and so on: object stores cannot append.

On a local disk the last segment grows line by line. Elsewhere lines are collected, and written as one segment when it
is cut, when they are many, or when they are old.
"""

from __future__ import annotations

import json
import time
from collections.abc import Mapping
from typing import IO, Any

from dagrl.storage.folder import Folder
from dagrl.storage.json_lines import json_line

_SUFFIX = ".jsonl"
#: Where a segment is written whole: no more bytes, and no older lines, than these wait in memory.
_MOST_BYTES = 1 << 20
_MOST_SECONDS = 30.0


def read_lines(url: str, name: str) -> list[dict[str, Any]]:
    """Every line of a run folder's ``metrics`` or ``events``, in order; one that a crash has cut short is left out."""
    folder = Folder(url).below(name)
    lines = [line for _, file in segments(folder) for line in folder.read(file).decode().splitlines(keepends=True)]
    return [json.loads(line) for line in lines if line.endswith("\n")]


class LineWriter:
    """Adds lines to new segments, from number ``first`` on."""

    def __init__(self, folder: Folder, first: int = 0) -> None:
        self._folder = folder
        self._number = first
        self._file: IO[str] | None = None
        self._waiting: list[str] = []
        self._bytes = 0
        self._since = time.monotonic()

    def append(self, record: Mapping[str, Any]) -> None:
        """Add one line."""
        line = json_line(record) + "\n"
        if self._folder.is_local:
            self._opened().write(line)
            return
        if not self._waiting:
            self._since = time.monotonic()
        self._waiting.append(line)
        self._bytes += len(line)

    def flush(self) -> None:
        """Where a segment is written whole, write it once that is worth it; on a local disk every line is there."""
        if self._waiting and (self._bytes > _MOST_BYTES or time.monotonic() - self._since > _MOST_SECONDS):
            self.cut()

    def cut(self) -> int:
        """End the segment, if there is anything in it; the number of the next one."""
        if self._file is not None:
            self._file.close()
            self._file = None
            self._number += 1
        elif self._waiting:
            self._folder.write(_file_name(self._number), "".join(self._waiting).encode())
            self._waiting, self._bytes = [], 0
            self._number += 1
        return self._number

    def _opened(self) -> IO[str]:
        if self._file is None:
            self._folder.make()
            path = self._folder.path(_file_name(self._number))
            # Kept open until the segment is cut; buffered by the line, so that a crash loses none.
            self._file = open(path, "a", buffering=1, encoding="utf-8")  # noqa: SIM115
        return self._file


def drop_segments(folder: Folder, first: int) -> None:
    """Remove the segments from number ``first`` on."""
    for number, file in segments(folder):
        if number >= first:
            folder.remove(file)


def segments(folder: Folder) -> list[tuple[int, str]]:
    """The number and the name of each segment, in order."""
    names = [name for name in folder.names() if name.endswith(_SUFFIX) and name.removesuffix(_SUFFIX).isdecimal()]
    return sorted((int(name.removesuffix(_SUFFIX)), name) for name in names)


def _file_name(number: int) -> str:
    return f"{number:06d}{_SUFFIX}"
