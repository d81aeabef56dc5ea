"""Rows of prompts by name: what ``prompts(data=..., split=..., test_share=...)`` reads.

``data`` is ``zoo:TASK``, ``gym:TASK?OPTION=VALUE&...`` (a task of reasoning-gym), a file of rows on any file system,
a path with ``{split}`` in it, or a folder with one file for each split (``train.jsonl``, ``test.parquet``). Of a single
file ``test_share`` of the rows are the split `test`, chosen by a hash of the prompt, the others the split `train`.
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Sequence
from functools import lru_cache
from typing import NoReturn

import numpy as np

from dagrl.data.file_rows import FileRows, PromptRows, RowFile, read_file
from dagrl.data.gym_rows import GymRows
from dagrl.data.row_shapes import PromptRow
from dagrl.errors import ConfigError, DataChangedError, Problem
from dagrl.storage.local_copy import file_exists, file_names
from dagrl.storage.tables import ENDINGS, ending
from dagrl.zoo import open_task
from dagrl.zoo.gym_tasks import GYM

__all__ = ["PromptRow", "PromptRows", "open_rows", "read_rows", "rows_in_use"]

ZOO = "zoo:"
TRAIN, TEST = "train", "test"
_SPLIT = "{split}"
_SPLIT_FIX = (
    "hold rows out with `test_share=0.1` in every `prompts` call on it (pipelines/grpo.py: `--set test_share=0.1`), "
    "or give a folder with a file for each split, or a path with `{split}` in it"
)
#: Files that are kept open; a run has a few.
_MOST_IN_USE = 64
_in_use: OrderedDict[tuple[str, str, float], PromptRows] = OrderedDict()


class ZooRows(PromptRows):
    """The rows of an embedded task."""

    def __init__(self, task: str, split: str) -> None:
        self._rows = open_task(task, split)

    def __len__(self) -> int:
        return len(self._rows)

    def __getitem__(self, index: int) -> PromptRow:
        row = self._rows[index]
        return PromptRow([{"role": "user", "content": row.prompt}], row.answer, row.data_source, row._asdict())


def open_rows(data: str, split: str, test_share: float = 0.0) -> PromptRows:
    """The rows of a split as they are now, every one of which has been checked.

    Raises:
        ConfigError: when nothing of that name can be read, or naming the rows that cannot be used.
    """
    rows = _opened(data, split, test_share)
    _in_use[data, split, test_share] = rows
    _in_use.move_to_end((data, split, test_share))
    while len(_in_use) > _MOST_IN_USE:
        _in_use.popitem(last=False)
    return rows


def rows_in_use(data: str, split: str, test_share: float = 0.0) -> PromptRows:
    """The rows as this process opened them last, so that a run reads what was checked when it was planned.

    Raises:
        ConfigError: as `open_rows`, where nobody has opened them.
    """
    rows = _in_use.get((data, split, test_share))
    return open_rows(data, split, test_share) if rows is None else rows


def read_rows(data: str, split: str, test_share: float, positions: Sequence[int]) -> list[PromptRow]:
    """The rows in use at some positions.

    Raises:
        DataChangedError: where the file is not what it was when it was opened; the next call opens it anew.
    """
    rows = rows_in_use(data, split, test_share)
    try:
        found = [rows[position] for position in positions]
        rows.check_unchanged()
    except DataChangedError:
        _in_use.pop((data, split, test_share), None)
        raise
    return found


def _opened(data: str, split: str, test_share: float) -> PromptRows:
    if not data:
        _refuse("`data` is empty", "name an embedded task (`zoo:larger`), a file or a folder")
    if not 0 <= test_share < 1:
        _refuse(f"`test_share` is {test_share}", "give a share of the rows, from 0 to below 1")
    if test_share and (data.startswith((ZOO, GYM)) or _SPLIT in data or not ending(data)):
        _refuse(f"data `{data}` has splits of its own", "leave `test_share` out, or give one file")
    if data.startswith(ZOO):
        return _zoo_rows(data.removeprefix(ZOO), split)
    if data.startswith(GYM):
        return _gym_rows(data, split)
    return _part(read_file(_url(data, split, test_share)), split, test_share)


@lru_cache(maxsize=16)
def _zoo_rows(task: str, split: str) -> ZooRows:
    return ZooRows(task, split)


@lru_cache(maxsize=16)
def _gym_rows(data: str, split: str) -> GymRows:
    return GymRows(data, split)


def _url(data: str, split: str, test_share: float) -> str:
    if _SPLIT in data:
        return _existing(data.replace(_SPLIT, split))
    if not ending(data):
        return _in_folder(data, split)
    there = _existing(data)
    known = (TRAIN, TEST) if test_share else (TRAIN,)
    if split not in known:
        _refuse(f"data `{data}` is one file and has no split `{split}`", _SPLIT_FIX)
    return there


def _existing(url: str) -> str:
    if not file_exists(url):
        _refuse(
            f"data `{url}` is not known: there is no such file",
            "check the path, or use an embedded task: `zoo:larger`",
        )
    return url


def _in_folder(folder: str, split: str) -> str:
    names = file_names(folder)
    found = [name for name in names if (end := ending(name)) and name[: -len(end)] == split]
    if len(found) == 1:
        return f"{folder.rstrip('/')}/{found[0]}"
    endings = ", ".join(ENDINGS)
    if len(found) > 1:
        _refuse(f"folder `{folder}` has several files for the split `{split}`: {_listed(found)}", "keep one of them")
    if names:
        what = f"folder `{folder}` has no file for the split `{split}`; it has {_listed(names)}"
        _refuse(what, f"name one `{split}` with one of the endings {endings}, or pass another `split`")
    if file_exists(folder):
        _refuse(f"data `{folder}` is neither a file of rows nor a folder with some", f"give a file ending in {endings}")
    what = f"data `{folder}` is not known: there is no such file or folder"
    _refuse(what, f"use an embedded task (`zoo:larger`), a file ending in {endings}, or a folder of them")


def _part(file: RowFile, split: str, test_share: float) -> PromptRows:
    if not test_share:
        return FileRows(file, range(len(file.table)))
    held_out = file.held_out(test_share)
    positions = np.flatnonzero(held_out if split == TEST else ~held_out)
    if not len(positions):
        what = f"with test_share={test_share} none of the {len(file.table)} rows of `{file.source.url}` is in `{split}`"
        _refuse(what, "choose another share, or give a file for each split")
    return FileRows(file, positions)


def _listed(names: list[str], shown: int = 8) -> str:
    more = f" and {len(names) - shown} more" if len(names) > shown else ""
    return ", ".join(f"`{name}`" for name in names[:shown]) + more


def _refuse(what: str, fix: str) -> NoReturn:
    raise ConfigError([Problem(f"{what}.", fix=fix)])
