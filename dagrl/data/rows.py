"""Rows of prompts by name: what ``prompts(data=...)`` reads."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import lru_cache

from dagrl.errors import ConfigError, Problem
from dagrl.zoo import open_task

ZOO = "zoo:"


@dataclass(frozen=True)
class PromptRow:
    """One prompt: chat messages, the reference answer, and the kind of prompt."""

    messages: Sequence[Mapping[str, str]]
    answer: str
    data_source: str


class ZooRows(Sequence[PromptRow]):
    """The rows of an embedded task."""

    def __init__(self, task: str, split: str) -> None:
        self._rows = open_task(task, split)

    def __len__(self) -> int:
        return len(self._rows)

    def __getitem__(self, index: int) -> PromptRow:  # pyright: ignore[reportIncompatibleMethodOverride]
        row = self._rows[index]
        return PromptRow([{"role": "user", "content": row.prompt}], row.answer, row.data_source)


@lru_cache(maxsize=16)
def open_rows(data: str, split: str) -> Sequence[PromptRow]:
    """The rows of ``zoo:TASK``.

    Raises:
        ConfigError: when nothing of that name can be read.
    """
    if data.startswith(ZOO):
        return ZooRows(data.removeprefix(ZOO), split)
    what = f"data `{data}` is not known."
    raise ConfigError([Problem(what, fix="use an embedded task: `zoo:larger`")])
