"""Prompt rows of one file: a first pass that checks every row, then rows read as they are asked for."""

from __future__ import annotations

import hashlib
import json
from array import array
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import lru_cache
from typing import Any

import numpy as np
from jaxtyping import Bool, Int64, UInt32
from numpy import ndarray

from dagrl.data.row_shapes import PromptRow, RowShape, shape_of
from dagrl.storage.local_copy import stamp
from dagrl.storage.tables import Table, ending, open_table

_HASHES = 2**32


class PromptRows(Sequence[PromptRow]):
    """The rows of one split; ``unanswered`` names the first that has no answer and counts the others."""

    unanswered: str | None = None

    def __getitem__(self, index: int) -> PromptRow:  # pyright: ignore[reportIncompatibleMethodOverride]
        """The row at an index."""
        raise NotImplementedError


@dataclass(frozen=True)
class RowFile:
    """An opened file; ``hashes`` are 32 bits for each row that depend on its prompt alone."""

    url: str
    table: Table
    shape: RowShape
    hashes: UInt32[ndarray, " M"]
    unanswered: Int64[ndarray, " U"]

    def held_out(self, test_share: float) -> Bool[ndarray, " M"]:
        """True for about ``test_share`` of the rows; rows with the same prompt are on the same side."""
        return self.hashes < int(test_share * _HASHES)


class FileRows(PromptRows):
    """The rows of a file at ``positions``."""

    def __init__(self, file: RowFile, positions: range | Int64[ndarray, " M"]) -> None:
        self._file = file
        self._positions = positions
        lacking = file.unanswered[np.isin(file.unanswered, positions)]
        if len(lacking):
            more = f", nor have {len(lacking) - 1} others" if len(lacking) > 1 else ""
            place = file.table.place(int(lacking[0]))
            self.unanswered = f"`{file.url}` {place} has no {file.shape.answer_name()}{more}"

    def __len__(self) -> int:
        return len(self._positions)

    def __getitem__(self, index: int) -> PromptRow:
        return self._file.shape.read(self._file.table[int(self._positions[index])])


def read_file(url: str) -> RowFile:
    """The rows of a file, all checked; read again only when the file has changed.

    Raises:
        ConfigError: when it cannot be read, or naming the first bad rows and how many there are.
    """
    return _read(url, stamp(url))


@lru_cache(maxsize=16)
def _read(url: str, _stamp: tuple[int, int] | None) -> RowFile:
    survey = _Survey(_stem(url))
    table = open_table(url, survey.look)
    return RowFile(
        url=url,
        table=table,
        shape=survey.shape or RowShape((), ""),
        hashes=np.frombuffer(survey.hashes, dtype=np.uint32),
        unanswered=np.array(survey.unanswered, dtype=np.int64),
    )


class _Survey:
    """What the first pass learns of the rows."""

    def __init__(self, data_source: str) -> None:
        self.shape: RowShape | None = None
        self.hashes = array("I")
        self.unanswered = array("q")
        self._data_source = data_source

    def look(self, fields: Mapping[str, Any]) -> None:
        if self.shape is None:
            self.shape = shape_of(fields, self._data_source)
        row = self.shape.read(fields)
        if row.answer is None:
            self.unanswered.append(len(self.hashes))
        self.hashes.append(_hash(row.messages))


def _hash(messages: Sequence[Mapping[str, str]]) -> int:
    text = json.dumps([[message["role"], message["content"]] for message in messages])
    return int.from_bytes(hashlib.blake2b(text.encode(), digest_size=4).digest(), "big")


def _stem(url: str) -> str:
    name = url.split("::")[0].split("?")[0].rstrip("/").rsplit("/", 1)[-1]
    return name[: -len(ending(name) or "")] or name
