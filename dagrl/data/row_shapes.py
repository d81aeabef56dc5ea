"""The shapes of data rows that are known, and what a prompt row takes from each.

======  ============================  ==============================================  =================
shape   prompt                        answer                                          kind of prompt
======  ============================  ==============================================  =================
plain   ``prompt``: text or messages  ``answer``                                      ``data_source``
verl    ``prompt``: messages          ``reward_model.ground_truth``                   ``data_source``
TRL     ``prompt``: text or messages  ``answer``, else ``ground_truth``, ``solution``  ``data_source``
======  ============================  ==============================================  =================

Each row is read by itself, so a file may hold rows of several shapes. The answer is the first of
``reward_model.ground_truth``, ``answer``, ``ground_truth`` and ``solution`` that is there and not null.
Without ``data_source`` the kind is the file's name.
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, cast

from dagrl.data.chat_messages import Message, read_messages
from dagrl.storage.row_faults import RowFault, kind

_ANSWERS = ("answer", "ground_truth", "solution")
#: What a message calls the fields that can hold an answer.
ANSWER_NAMES = "`answer`, `ground_truth`, `solution` or `reward_model.ground_truth`"
#: Up to here a float holds every whole number.
_EXACT = 2**53


@dataclass(frozen=True)
class PromptRow:
    """One prompt: chat messages, the reference answer if it has one, the kind of prompt, and the whole data row."""

    messages: Sequence[Message]
    answer: str | None
    data_source: str
    fields: Mapping[str, Any] = field(default_factory=dict[str, Any])


def read_row(fields: Mapping[str, Any], data_source: str) -> PromptRow:
    """The prompt of a data row; ``data_source`` is the kind of one that does not say its own.

    Raises:
        RowFault: naming the field that is missing or of another type.
    """
    if "prompt" not in fields:
        there = ", ".join(f"`{name}`" for name in fields) or "nothing"
        raise RowFault(f"it has no `prompt`; it has {there}", "rename the field that holds the prompt to `prompt`")
    return PromptRow(read_messages(fields["prompt"]), _answer(fields), _source(fields, data_source), fields)


def answer_text(name: str, value: Any) -> str:
    """An answer as text: text as it is, anything else as JSON (``72``, ``[1, 2]``, ``true``).

    A whole number is written without a point, also inside a list or object, whether the file says 72 or 72.0:
    a column of whole numbers in which some are missing is often stored as floats. Text is never changed:
    the answer "72.0" stays "72.0".

    Raises:
        RowFault: for what JSON cannot say.
    """
    if isinstance(value, str):
        return value
    try:
        return json.dumps(_whole(value), ensure_ascii=False, allow_nan=False)
    except (TypeError, ValueError) as error:
        fix = "write it as text, a number, a list or an object"
        raise RowFault(f"`{name}` is {kind(value)}, which has no text", fix) from error


def _answer(fields: Mapping[str, Any]) -> str | None:
    judged = fields.get("reward_model")
    if isinstance(judged, Mapping):
        truth = cast("Mapping[str, Any]", judged).get("ground_truth")
        if truth is not None:
            return answer_text("reward_model.ground_truth", truth)
    name = next((name for name in _ANSWERS if fields.get(name) is not None), None)
    if name is not None:
        return answer_text(name, fields[name])
    if judged is not None and not isinstance(judged, Mapping):
        raise RowFault(f"`reward_model` is {kind(judged)}", 'write `reward_model` as an object: {"ground_truth": ...}')
    return None


def _source(fields: Mapping[str, Any], otherwise: str) -> str:
    source = fields.get("data_source")
    if source is None:
        return otherwise
    if not isinstance(source, str):
        raise RowFault(f"`data_source` is {kind(source)}", "write it as text, or leave it out")
    return source


def _whole(value: Any) -> Any:
    if isinstance(value, float) and value.is_integer() and abs(value) <= _EXACT:
        return int(value)
    if isinstance(value, Mapping):
        return {name: _whole(inner) for name, inner in cast("Mapping[str, Any]", value).items()}
    if isinstance(value, list):
        return [_whole(inner) for inner in cast("list[Any]", value)]
    return value
