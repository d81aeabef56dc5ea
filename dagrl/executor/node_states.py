"""The nodes' own states as one part of a checkpoint, and back: JSON with tensors beside it, read by declared class."""

from __future__ import annotations

import dataclasses
import math
import types
from collections.abc import Mapping
from typing import Any, Union, get_args, get_origin, get_type_hints

from torch import Tensor

from dagrl.errors import CheckpointError, NodeError
from dagrl.storage.checkpoints import PartRecord, StatePart, write_part

#: The name of the part.
NODES = "nodes"
_TENSOR, _NUMBER, _CLASS = "tensor", "number", "class"


def write_node_states(folder_url: str, states: Mapping[str, Mapping[str, Any]]) -> PartRecord:
    """Write the states of all calls, given by pipeline and call."""
    tensors: dict[str, Tensor] = {}
    written = {
        pipeline: {call: encode(state, f"the state of `{call}`", tensors) for call, state in of_calls.items()}
        for pipeline, of_calls in states.items()
    }
    return write_part(folder_url, NODES, tensors, {"states": written})


def read_node_states(part: StatePart, states: Mapping[str, Mapping[str, Any]]) -> dict[str, dict[str, Any]]:
    """The saved states of the same calls; each present one tells the class.

    Raises:
        CheckpointError: when a call has none in the part, or one that does not fit its class.
    """
    written = part.info["states"]
    return {
        pipeline: {call: _read(part, written, pipeline, call, type(state)) for call, state in of_calls.items()}
        for pipeline, of_calls in states.items()
    }


def _read(part: StatePart, written: Any, pipeline: str, call: str, declared: type) -> Any:
    try:
        return decode(written[pipeline][call], declared, part)
    except (KeyError, TypeError, ValueError) as error:
        what = f"the checkpoint holds no state of `{call}` of pipeline `{pipeline}` that fits `{declared.__name__}`"
        raise CheckpointError(f"{what}: {type(error).__name__}: {error}") from error


def encode(value: Any, where: str, tensors: dict[str, Tensor]) -> Any:
    """The value as JSON; tensors go into ``tensors``, and a number that JSON has no word for becomes a text.

    Raises:
        NodeError: naming what cannot be saved.
    """
    match value:
        case Tensor():
            tensors[str(len(tensors))] = value
            return {_TENSOR: str(len(tensors) - 1)}
        case float() if type(value) is float and not math.isfinite(value):
            return {_NUMBER: repr(value)}
        case _ if value is None or type(value) in (bool, int, float, str):
            return value
        case tuple():
            return [encode(item, f"{where}[{place}]", tensors) for place, item in enumerate(value)]
        case _ if dataclasses.is_dataclass(value) and not isinstance(value, type):
            fields = {f.name: encode(getattr(value, f.name), f"{where}.{f.name}", tensors) for f in dataclasses.fields(value)}
            return {_CLASS: type(value).__name__, "fields": fields}
        case _:
            raise NodeError(f"{where} is a {type(value).__name__}, which no checkpoint can hold")


def decode(written: Any, declared: Any, part: StatePart) -> Any:
    """The value that ``encode`` wrote, as the declared type."""
    match written:
        case {"tensor": str(name)}:
            return part.tensor(name)
        case {"number": str(text)}:
            return float(text)
        case {"class": str(name), "fields": dict(fields)}:
            chosen = _class_named(name, declared)
            hints = get_type_hints(chosen)
            return chosen(**{field: decode(value, hints[field], part) for field, value in fields.items()})
        case list():
            return tuple(decode(item, _item_type(declared, place), part) for place, item in enumerate(written))
        case _:
            return written


def _class_named(name: str, declared: Any) -> type:
    """The declared class of that name: the only ones that are ever made."""
    options = get_args(declared) if get_origin(declared) in (Union, types.UnionType) else (declared,)
    return next(option for option in options if isinstance(option, type) and option.__name__ == name)


def _item_type(declared: Any, place: int) -> Any:
    """What a tuple's annotation says of one item; of several tuples in a union, the first that says something."""
    options = get_args(declared) if get_origin(declared) in (Union, types.UnionType) else (declared,)
    for members in (get_args(option) for option in options if get_origin(option) is tuple):
        if len(members) == 2 and members[1] is Ellipsis:
            return members[0]
        if place < len(members):
            return members[place]
    return Any
