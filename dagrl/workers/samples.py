"""A few scored rows of each walk as texts, for people to read."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from torch import Tensor

from dagrl.graph.roles import Message
from dagrl.workers.frames import Rows
from dagrl.workers.node_runner import Columns

#: Rows of a walk whose texts are kept, and those of them that are shown.
_KEPT, _SHOWN = 32, 4
_MAX_CHARACTERS = 400


@dataclass(frozen=True)
class SampledRow:
    """A row that was scored: texts, cut where they are long, and the reward, None where it has none."""

    prompt: str
    response: str
    answer: str
    reward: float | None


@dataclass
class SampleKeeper:
    """Remembers the texts of a walk's first rows as they are written, until they are scored."""

    _texts: dict[int, dict[str, str]] = field(default_factory=dict)

    def look(self, rows: Rows, columns: Columns) -> tuple[SampledRow, ...]:
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

    def _scored(self, numbers: Sequence[int], rewards: Tensor) -> tuple[SampledRow, ...]:
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
    ranked = sorted(known, key=_reward, reverse=True)
    highest = _of_different_prompts(ranked)[: -(-_SHOWN // 2)]
    others = [one for one in sorted(known, key=_reward) if all(one is not each for each in highest)]
    shown = {texts.get("messages") for _, texts in highest}
    fresh = [one for one in others if one[1].get("messages") not in shown]
    lowest = _of_different_prompts([*fresh, *(one for one in others if one[1].get("messages") in shown)])
    return sorted([*highest, *lowest[: _SHOWN // 2]], key=_reward, reverse=True)


def _of_different_prompts(rows: list[tuple[float, dict[str, str]]]) -> list[tuple[float, dict[str, str]]]:
    """The first row of each prompt, and after them the rest."""
    firsts: dict[str | None, int] = {}
    for place, (_, texts) in enumerate(rows):
        firsts.setdefault(texts.get("messages"), place)
    places = sorted(range(len(rows)), key=lambda place: firsts[rows[place][1].get("messages")] != place)
    return [rows[place] for place in places]


def _reward(one: tuple[float, dict[str, str]]) -> float:
    return -math.inf if math.isnan(one[0]) else one[0]


def _sample(value: float, texts: Mapping[str, str]) -> SampledRow:
    reward = value if math.isfinite(value) else None
    return SampledRow(texts.get("messages", ""), texts["response_text"], texts.get("answers", ""), reward)


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
