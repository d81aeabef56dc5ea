"""Rows of plain dicts in a JSONL or parquet file of any file system, read at random.

Opening is one streaming pass, in which every row is parsed and checked. What stays in memory is twelve bytes
a row; rows are read from the file when they are asked for.
"""

from __future__ import annotations

import os
import pickle
from array import array
from collections.abc import Callable, Mapping, Sequence
from typing import Any, BinaryIO

from dagrl.errors import ConfigError, Problem
from dagrl.storage.jsonl import LineIndex, checksum, index_lines, parse_line
from dagrl.storage.local_copy import open_local
from dagrl.storage.parquet import unpack_rows
from dagrl.storage.row_faults import RowCheck, changed_error

PARQUET = (".parquet",)
JSON_LINES = (".jsonl", ".json", ".jsonl.gz", ".json.gz")
#: What the name of a file of rows ends in.
ENDINGS = (*JSON_LINES, *PARQUET)


class Table(Sequence[Mapping[str, Any]]):
    """The rows of one file, in its order."""

    def __init__(self, file: BinaryIO, starts: array[int], parse: Callable[[bytes], Mapping[str, Any]]) -> None:
        self._file = file
        self._starts = starts
        self._parse = parse

    def __len__(self) -> int:
        return len(self._starts) - 1

    def __getitem__(self, index: int) -> Mapping[str, Any]:  # pyright: ignore[reportIncompatibleMethodOverride]
        return self._parse(self._bytes(range(len(self))[index]))

    def place(self, index: int) -> str:
        """How a message names the row: by its number, from 1."""
        return f"row {index + 1}"

    def _bytes(self, row: int) -> bytes:
        start, end = self._starts[row], self._starts[row + 1]
        return os.pread(self._file.fileno(), end - start, start)


class LinesTable(Table):
    """The rows of a JSONL file, read from the file itself, which somebody may change meanwhile."""

    def __init__(self, url: str, file: BinaryIO, index: LineIndex) -> None:
        super().__init__(file, index.starts, parse_line)
        self._url = url
        self._index = index

    def place(self, index: int) -> str:
        """How a message names the row: by its line, from 1."""
        return f"line {self._index.numbers[index]}"

    def _bytes(self, row: int) -> bytes:
        try:
            line = super()._bytes(row)
        except OSError as error:
            what = f"{self.place(row)} cannot be read any more ({error.strerror or error})"
            raise changed_error(self._url, what) from error
        if checksum(line) != self._index.checksums[row]:
            raise changed_error(self._url, f"{self.place(row)} is another than it was")
        return line


def open_table(url: str, check: RowCheck) -> Table:
    """The rows of a file, each of which has passed ``check``, which raises `RowFault` for one that cannot be used.

    Raises:
        ConfigError: when the file cannot be read or is empty, or naming the first bad rows and how many there are.
    """
    file = open_local(url)
    if ending(url) in PARQUET:
        with file:
            table = Table(*unpack_rows(url, file, check), pickle.loads)
    else:
        table = LinesTable(url, file, index_lines(url, file, check))
    if not len(table):
        raise ConfigError([Problem(f"`{url}` has no rows.", fix="give a file with at least one row")])
    return table


def ending(url: str) -> str | None:
    """Which of the known endings a URL has; a query does not count, nor what a chain of file systems adds."""
    name = url.split("::")[0]
    name = name.split("?")[0] if "://" in name else name
    return next((known for known in sorted(ENDINGS, key=len, reverse=True) if name.lower().endswith(known)), None)
