"""Prompt rows of one file: a first pass that checks every row, then rows read as they are asked for."""

from __future__ import annotations

from array import array
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property, lru_cache
from typing import Any

import numpy as np
from jaxtyping import Bool, Int64, UInt32
from numpy import ndarray

from dagrl.data.chat_messages import prompt_hash
from dagrl.data.row_shapes import ANSWER_NAMES, PromptRow, read_row
from dagrl.storage.row_faults import changed_error
from dagrl.storage.stamps import WatchedFile, watch
from dagrl.storage.tables import Table, ending, open_table

_HASHES = 2**32
#: Rows that tell how long prompts are, where not all are read.
_LOOKED_AT = 8


class PromptRows(Sequence[PromptRow]):
    """The rows of one split; ``unanswered`` names the first that has no answer and counts the others."""

    unanswered: str | None = None

    @cached_property
    def longest(self) -> int | None:
        """The row whose prompt has the most text, of all in a file; of rows made as they are asked for, the first 8.

        Making one of those takes up to 0.4 s in the slowest tasks. None where there is no row.
        """
        return max(range(min(len(self), _LOOKED_AT)), key=lambda index: text_size(self[index].messages), default=None)

    def __getitem__(self, index: int) -> PromptRow:  # pyright: ignore[reportIncompatibleMethodOverride]
        """The row at an index."""
        raise NotImplementedError

    def check_unchanged(self) -> None:
        """See that the data is what it was when it was opened.

        Raises:
            DataChangedError: naming the file and what became of it.
        """


@dataclass(frozen=True)
class RowFile:
    """An opened file; of each row's prompt ``hashes`` are 32 bits and ``sizes`` its characters."""

    source: WatchedFile
    table: Table
    data_source: str
    hashes: UInt32[ndarray, " M"]
    sizes: UInt32[ndarray, " M"]
    unanswered: Int64[ndarray, " U"]

    def held_out(self, test_share: float) -> Bool[ndarray, " M"]:
        """True for about ``test_share`` of the rows; rows with the same prompt are on the same side."""
        return self.hashes < int(test_share * _HASHES)


class FileRows(PromptRows):
    """The rows of a file at ``positions``."""

    def __init__(self, file: RowFile, positions: range | Int64[ndarray, " M"]) -> None:
        self._file = file
        self._positions = positions
        self.longest = int(file.sizes[positions].argmax()) if len(positions) else None
        lacking = file.unanswered[np.isin(file.unanswered, positions)]
        if len(lacking):
            self.unanswered = f"`{file.source.url}` {file.table.place(int(lacking[0]))} has no {ANSWER_NAMES}"
            others = len(lacking) - 1
            if others:
                self.unanswered += f", nor {'has 1 other row' if others == 1 else f'have {others} other rows'}"

    def __len__(self) -> int:
        return len(self._positions)

    def __getitem__(self, index: int) -> PromptRow:
        return read_row(self._file.table[int(self._positions[index])], self._file.data_source)

    def check_unchanged(self) -> None:
        """See that the file is what it was when it was opened.

        Raises:
            DataChangedError: naming the file and what became of it.
        """
        change = self._file.source.change()
        if change is not None:
            raise changed_error(self._file.source.url, change)


def read_file(url: str) -> RowFile:
    """The rows of a file, all checked; read again only when the file has changed.

    Raises:
        ConfigError: when it cannot be read, or naming the first bad rows and how many there are.
    """
    return _read(watch(url))


@lru_cache(maxsize=16)
def _read(source: WatchedFile) -> RowFile:
    data_source = _stem(source.url)
    survey = _Survey(data_source)
    return RowFile(
        source=source,
        table=open_table(source.url, survey.look),
        data_source=data_source,
        hashes=np.frombuffer(survey.hashes, dtype=np.uint32),
        sizes=np.frombuffer(survey.sizes, dtype=np.uint32),
        unanswered=np.array(survey.unanswered, dtype=np.int64),
    )


class _Survey:
    """What the first pass learns of the rows."""

    def __init__(self, data_source: str) -> None:
        self.hashes = array("I")
        self.sizes = array("I")
        self.unanswered = array("q")
        self._data_source = data_source

    def look(self, fields: Mapping[str, Any]) -> None:
        row = read_row(fields, self._data_source)
        if row.answer is None:
            self.unanswered.append(len(self.hashes))
        self.hashes.append(prompt_hash(row.messages))
        self.sizes.append(text_size(row.messages))


def text_size(messages: Sequence[Mapping[str, Any]]) -> int:
    """The characters of a prompt."""
    return sum(len(message["content"]) for message in messages)


def _stem(url: str) -> str:
    name = url.split("::")[0].split("?")[0].rstrip("/").rsplit("/", 1)[-1]
    return name[: -len(ending(name) or "")] or name
