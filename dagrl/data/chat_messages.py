"""The prompt of a data row as chat messages, as a chat template gets them."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Mapping, Sequence
from typing import Any, cast

from dagrl.storage.row_faults import RowFault, kind

Message = Mapping[str, Any]

ROLES = ("system", "developer", "user", "assistant", "tool")
_TEXTS = ("role", "content")
_TO_JSON = json.JSONEncoder(sort_keys=True, default=str).encode
_FIX = 'write text, or messages: [{"role": "user", "content": "..."}]'


def read_messages(prompt: Any) -> list[Message]:
    """The messages of a prompt: text is one of the user's; of messages every field is kept.

    A field that is null counts as absent, also inside others: parquet cannot tell the two apart. An assistant's
    message that calls tools may go without content, which is then empty.

    Raises:
        RowFault: naming the message and the field that is missing, of another type or of an unknown role.
    """
    if isinstance(prompt, str):
        messages: list[Message] = [{"role": "user", "content": prompt}]
    elif not isinstance(prompt, list):
        raise RowFault(f"`prompt` is {kind(prompt)}", _FIX)
    elif not prompt:
        raise RowFault("`prompt` is an empty list", _FIX)
    else:
        messages = [_message(f"prompt[{number}]", said) for number, said in enumerate(cast("list[Any]", prompt))]
    if not any(message["content"].strip() or more_than_text(message) for message in messages):
        raise RowFault("`prompt` is empty", "write the prompt, or drop the row")
    return messages


def more_than_text(message: Message) -> dict[str, Any]:
    """The fields of a message beside role and content."""
    if len(message) == len(_TEXTS):
        return {}
    return {name: value for name, value in message.items() if name not in _TEXTS}


def prompt_hash(messages: Sequence[Message]) -> int:
    """32 bits that depend on the messages alone, however the file spells them."""
    said = [[message["role"], message["content"], *filter(None, [more_than_text(message)])] for message in messages]
    return int.from_bytes(hashlib.blake2b(_TO_JSON(said).encode(), digest_size=4).digest(), "big")


def _message(place: str, value: Any) -> Message:
    if not isinstance(value, Mapping):
        raise RowFault(f"`{place}` is {kind(value)}, not a message", _FIX)
    said = cast("Mapping[str, Any]", value)
    role = _text(place, said, "role")
    if role not in ROLES:
        known = ", ".join(f"`{name}`" for name in ROLES)
        raise RowFault(f"`{place}` has the role `{role}`", f"rename the role; the known ones are {known}")
    if role == "assistant" and said.get("tool_calls") and said.get("content") is None:
        return {**_without_nulls(said), "content": ""}
    _text(place, said, "content")
    return dict(said) if len(said) == len(_TEXTS) else _without_nulls(said)


def _text(place: str, said: Mapping[str, Any], name: str) -> str:
    if name not in said:
        raise RowFault(f"`{place}` has no `{name}`", _FIX)
    if not isinstance(said[name], str):
        raise RowFault(f"`{place}.{name}` is {kind(said[name])}, not text", _FIX)
    return said[name]


def _without_nulls(value: Any) -> Any:
    if isinstance(value, Mapping):
        fields = cast("Mapping[str, Any]", value)
        return {name: _without_nulls(inner) for name, inner in fields.items() if inner is not None}
    if isinstance(value, list):
        return [_without_nulls(inner) for inner in cast("list[Any]", value)]
    return value
