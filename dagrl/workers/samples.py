"""A few scored rows of each walk as texts, for people to read."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from torch import Tensor

from dagrl.data.reported import Sample
from dagrl.graph.roles import Message
from dagrl.workers.frames import Rows
from dagrl.workers.node_runner import Columns

#: Rows of a walk whose texts are kept, and those of them that are shown.
_KEPT, _SHOWN = 32, 4
_MAX_CHARACTERS = 400


@dataclass
class SampleKeeper:
    """Remembers the texts of a walk's first rows as they are written, until they are scored."""

    _texts: dict[int, dict[str, str]] = field(default_factory=dict)

    def look(self, rows: Rows, columns: Columns) -> tuple[Sample, ...]:
        """See what a node has written; the samples, where it has written rewards."""
        found = {name: columns[name] for name in ("messages", "answers", "response_text") if name in columns}
        rewards = columns.get("rewards")
        if not found and not isinstance(rewards, Tensor):
            return ()
        numbers: list[int] = rows.row_ids[: None if isinstance(rewards, Tensor) else _KEPT].tolist()
        for name, column in found.items():
            for number, value in zip(numbers[:_KEPT], column[:_KEPT], strict=True):
                self._keep(number, name, _text(value))
        return self._scored(numbers, rewards) if isinstance(rewards, Tensor) else ()

    def _keep(self, number: int, name: str, text: str) -> None:
        if number in self._texts or len(self._texts) < _KEPT:
            self._texts.setdefault(number, {})[name] = text

    def _scored(self, numbers: Sequence[int], rewards: Tensor) -> tuple[Sample, ...]:
        values: list[float] = rewards.double().tolist()
        known = [
            (value, self._texts[number])
            for number, value in zip(numbers, values, strict=True)
            if number in self._texts and "response_text" in self._texts[number]
        ]
        return tuple(_sample(value, texts) for value, texts in _spread(known))


def _spread(known: list[tuple[float, dict[str, str]]]) -> list[tuple[float, dict[str, str]]]:
    """As many as are shown: half of them with the highest rewards, half with the lowest, a row without one among them.

    Prompts are not shown twice while there are others; of equal rewards the first rows come; the highest come first.
    """
    shown: list[int] = []
    places = range(len(known))
    for highest in (True, False):
        ranked = sorted(places, key=lambda place: _reward(known[place]), reverse=highest)
        for _ in range(_SHOWN // 2):
            prompts = {known[place][1].get("messages") for place in shown}
            left = [place for place in ranked if place not in shown]
            shown += left and [min(left, key=lambda place: known[place][1].get("messages") in prompts)]
    return sorted((known[place] for place in shown), key=_reward, reverse=True)


def _reward(one: tuple[float, dict[str, str]]) -> float:
    return -math.inf if math.isnan(one[0]) else one[0]


def _sample(value: float, texts: Mapping[str, str]) -> Sample:
    reward = value if math.isfinite(value) else None
    return Sample(texts.get("messages", ""), texts["response_text"], texts.get("answers", ""), reward)


def _text(value: Any) -> str:
    """A text, or the content of a conversation's last message; cut in the middle where it is long."""
    match value:
        case [*_, {"content": content}]:
            text = _content(content)
        case None:
            text = ""
        case _:
            text = str(value)
    return text if len(text) <= _MAX_CHARACTERS else f"{text[: _MAX_CHARACTERS // 2]} … {text[-_MAX_CHARACTERS // 2 :]}"


def _content(content: Message | Any) -> str:
    match content:
        case str():
            return content
        case list():
            return " ".join(str(part["text"]) for part in content if isinstance(part, Mapping) and "text" in part)
        case _:
            return "" if content is None else str(content)
