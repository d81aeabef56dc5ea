"""Rows of plain dicts in a JSONL or parquet file of any file system, read at random.

Opening is one streaming pass, in which every row is parsed and checked. What stays in memory is eight bytes
a row; rows are read from the file when they are asked for.
"""

from __future__ import annotations

import os
import pickle
from array import array
from collections.abc import Callable, Mapping, Sequence
from typing import Any, BinaryIO

from dagrl.errors import ConfigError, Problem
from dagrl.storage.jsonl import index_lines, line_number, parse_line
from dagrl.storage.local_copy import open_local
from dagrl.storage.parquet import unpack_rows
from dagrl.storage.row_faults import RowCheck, RowFault, row_problem

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
        row = range(len(self))[index]
        start, end = self._starts[row], self._starts[row + 1]
        return self._parse(os.pread(self._file.fileno(), end - start, start))

    def place(self, index: int) -> str:
        """How a message names the row: by its number, from 1."""
        return f"row {index + 1}"


class LinesTable(Table):
    """The rows of a JSONL file, read from the file itself."""

    def __init__(self, url: str, file: BinaryIO, starts: array[int]) -> None:
        super().__init__(file, starts, parse_line)
        self._url = url

    def __getitem__(self, index: int) -> Mapping[str, Any]:
        try:
            return super().__getitem__(index)
        except RowFault as fault:
            problem = row_problem(self._url, self.place(index), fault)
            raise ConfigError([problem], f"data `{self._url}` has changed since it was opened") from fault

    def place(self, index: int) -> str:
        """How a message names the row: by its line, from 1."""
        return f"line {line_number(self._file, self._starts[index])}"


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
