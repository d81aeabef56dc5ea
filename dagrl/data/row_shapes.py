"""The shapes of data rows that are known, and what a prompt row takes from each.

======  ============================  ==============================================  =================
shape   prompt                        answer                                          kind of prompt
======  ============================  ==============================================  =================
plain   ``prompt``: text or messages  ``answer``                                      ``data_source``
verl    ``prompt``: messages          ``reward_model.ground_truth``                   ``data_source``
TRL     ``prompt``: text or messages  ``answer``, else ``ground_truth``, ``solution``  ``data_source``
======  ============================  ==============================================  =================

The first row of a file says where its answers are. Without ``data_source`` the kind is the file's name.
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, cast

from dagrl.storage.row_faults import RowFault

_VERL_ANSWER = ("reward_model", "ground_truth")
_ANSWERS = (("answer",), ("ground_truth",), ("solution",))
_MESSAGES = 'write text, or messages: [{"role": "user", "content": "..."}]'


@dataclass(frozen=True)
class PromptRow:
    """One prompt: chat messages, the reference answer if it has one, the kind of prompt, and the whole data row."""

    messages: Sequence[Mapping[str, str]]
    answer: str | None
    data_source: str
    fields: Mapping[str, Any] = field(default_factory=dict[str, Any])


@dataclass(frozen=True)
class RowShape:
    """Where the rows of one file have their answer; empty if the first row has none. And their default kind."""

    answer: tuple[str, ...]
    data_source: str

    def read(self, fields: Mapping[str, Any]) -> PromptRow:
        """The prompt of a data row.

        Raises:
            RowFault: naming the field that is missing or of another type.
        """
        return PromptRow(_messages(fields), self._answer(fields), self._source(fields), fields)

    def answer_name(self) -> str:
        """What a message calls the field of the answer."""
        return f"`{'.'.join(self.answer)}`" if self.answer else "`answer`, `ground_truth` or `solution`"

    def _answer(self, fields: Mapping[str, Any]) -> str | None:
        value: Any = fields
        for depth, name in enumerate(self.answer, 1):
            if not isinstance(value, Mapping):
                where = ".".join(self.answer[: depth - 1])
                raise RowFault(f"`{where}` is {kind(value)}", f'write `{where}` as an object: {{"{name}": ...}}')
            value = cast("Mapping[str, Any]", value).get(name)
            if value is None:
                return None
        return answer_text(".".join(self.answer), value) if self.answer else None

    def _source(self, fields: Mapping[str, Any]) -> str:
        source = fields.get("data_source")
        if source is None:
            return self.data_source
        if not isinstance(source, str):
            raise RowFault(f"`data_source` is {kind(source)}", "write it as text, or leave it out")
        return source


def shape_of(fields: Mapping[str, Any], data_source: str) -> RowShape:
    """The shape of a file whose first row this is."""
    if "reward_model" in fields:
        return RowShape(_VERL_ANSWER, data_source)
    return RowShape(next((path for path in _ANSWERS if path[0] in fields), ()), data_source)


def answer_text(name: str, value: Any) -> str:
    """An answer as text: text as it is, anything else as JSON (``72``, ``[1, 2]``, ``true``).

    Raises:
        RowFault: for what JSON cannot say.
    """
    if isinstance(value, str):
        return value
    try:
        return json.dumps(value, ensure_ascii=False, allow_nan=False)
    except (TypeError, ValueError) as error:
        fix = "write it as text, a number, a list or an object"
        raise RowFault(f"`{name}` is {kind(value)}, which has no text", fix) from error


def kind(value: Any) -> str:
    """What a message calls a value."""
    match value:
        case None:
            return "null"
        case str():
            return "text"
        case bool() | int() | float():
            return f"{value}"
        case list():
            return "a list"
        case Mapping():
            return "an object"
        case _:
            return f"a {type(value).__name__}"


def _messages(fields: Mapping[str, Any]) -> list[dict[str, str]]:
    if "prompt" not in fields:
        there = ", ".join(f"`{name}`" for name in fields) or "nothing"
        raise RowFault(f"it has no `prompt`; it has {there}", "rename the field that holds the prompt to `prompt`")
    prompt = fields["prompt"]
    if isinstance(prompt, str):
        if not prompt.strip():
            raise RowFault("`prompt` is empty", "write the prompt, or drop the row")
        return [{"role": "user", "content": prompt}]
    if not isinstance(prompt, list):
        raise RowFault(f"`prompt` is {kind(prompt)}", _MESSAGES)
    if not prompt:
        raise RowFault("`prompt` is an empty list", _MESSAGES)
    return [_message(number, message) for number, message in enumerate(cast("list[Any]", prompt))]


def _message(number: int, message: Any) -> dict[str, str]:
    if not isinstance(message, Mapping):
        raise RowFault(f"`prompt[{number}]` is {kind(message)}, not a message", _MESSAGES)
    said = cast("Mapping[str, Any]", message)
    for name in ("role", "content"):
        if name not in said:
            raise RowFault(f"`prompt[{number}]` has no `{name}`", _MESSAGES)
        if not isinstance(said[name], str):
            raise RowFault(f"`prompt[{number}].{name}` is {kind(said[name])}, not text", _MESSAGES)
    return {"role": said["role"], "content": said["content"]}
