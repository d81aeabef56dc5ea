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


def check_state(call: str, state: Any, declared: type) -> None:
    """See that a checkpoint can hold a state, and give it back as the declared class.

    Raises:
        NodeError: naming the call and the field.
    """
    _encode(state, declared, f"the state of `{call}`", {})


def write_node_states(folder_url: str, states: Mapping[str, Mapping[str, Any]]) -> PartRecord:
    """Write the states of all calls, given by pipeline and call."""
    tensors: dict[str, Tensor] = {}
    written = {
        pipeline: {
            call: _encode(state, type(state), f"the state of `{call}`", tensors) for call, state in of_calls.items()
        }
        for pipeline, of_calls in states.items()
    }
    return write_part(folder_url, NODES, tensors, {"states": written})


def read_node_states(part: StatePart, states: Mapping[str, Mapping[str, Any]]) -> dict[str, dict[str, Any]]:
    """The saved states of the same calls; the present ones tell the classes.

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
        return _decode(written[pipeline][call], declared, part)
    except (KeyError, TypeError, ValueError) as error:
        what = f"the checkpoint holds no state of `{call}` of pipeline `{pipeline}` that fits `{declared.__name__}`"
        raise CheckpointError(f"{what}: {type(error).__name__}: {error}") from error


def _encode(value: Any, declared: Any, where: str, tensors: dict[str, Tensor]) -> Any:
    """The value as JSON; tensors go into ``tensors``, and a number that JSON has no word for becomes a text."""
    if isinstance(value, Tensor):
        tensors[str(len(tensors))] = value
        return {"tensor": str(len(tensors) - 1)}
    if type(value) is float and not math.isfinite(value):
        return {"number": repr(value)}
    if value is None or type(value) in (bool, int, float, str):
        return value
    if type(value) is tuple:
        return [
            _encode(item, _item_type(declared, place), f"{where}[{place}]", tensors) for place, item in enumerate(value)
        ]
    if type(value) in _options(declared) and dataclasses.is_dataclass(value):
        return {"class": type(value).__name__, "fields": _encode_fields(value, where, tensors)}
    raise NodeError(
        f"{where} is a {type(value).__name__} where its class declares {_shown(declared)}: a checkpoint holds numbers, "
        "strings, bools, None, tuples of them, tensors, and the frozen dataclasses that are declared"
    )


def _encode_fields(value: Any, where: str, tensors: dict[str, Tensor]) -> dict[str, Any]:
    hints = get_type_hints(type(value))
    names = [field.name for field in dataclasses.fields(value)]
    return {name: _encode(getattr(value, name), hints[name], f"{where}.{name}", tensors) for name in names}


def _decode(written: Any, declared: Any, part: StatePart) -> Any:
    """The value that was encoded; of classes, only declared ones are ever made."""
    match written:
        case {"tensor": str(name)}:
            return part.tensor(name)
        case {"number": str(text)}:
            return float(text)
        case {"class": str(name), "fields": dict(fields)}:
            chosen = {option.__name__: option for option in _options(declared) if isinstance(option, type)}[name]
            hints = get_type_hints(chosen)
            return chosen(**{field: _decode(value, hints[field], part) for field, value in fields.items()})
        case list():
            return tuple(_decode(item, _item_type(declared, place), part) for place, item in enumerate(written))
        case _:
            return written


def _options(declared: Any) -> tuple[Any, ...]:
    """The members of a union; of anything else, itself."""
    return get_args(declared) if get_origin(declared) in (Union, types.UnionType) else (declared,)


def _item_type(declared: Any, place: int) -> Any:
    """What a tuple's annotation says of one item; of several tuples in a union, all of them."""
    found: Any = Any
    for members in (get_args(option) for option in _options(declared) if get_origin(option) is tuple):
        if len(members) == 2 and members[1] is Ellipsis:
            member = members[0]
        elif place < len(members):
            member = members[place]
        else:
            continue
        found = member if found is Any else Union[found, member]  # noqa: UP007 - made of values, not written
    return found


def _shown(declared: Any) -> str:
    return f"`{declared.__name__}`" if isinstance(declared, type) else f"`{declared}`"
