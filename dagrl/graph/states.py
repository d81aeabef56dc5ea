"""What a node's own state may be made of, so that a checkpoint can hold it without a pickle."""

from __future__ import annotations

import dataclasses
import inspect
import types
from collections.abc import Iterator
from typing import Any, Literal, Union, get_args, get_origin, get_type_hints

from jaxtyping import AbstractArray

_PLAIN = (bool, int, float, str, type(None))
STATE_FIX = "use numbers, strings, bools, None, tuples of them, tensors and frozen dataclasses of these"


def state_faults(declared: type) -> list[str]:
    """What in the declared class of a state no checkpoint can hold, each with its field; empty where all is well."""
    return [f"{where} is {what}" for where, what in _faults(f"`{_name(declared)}`", declared, frozenset())]


def _faults(where: str, declared: Any, inside: frozenset[Any]) -> Iterator[tuple[str, str]]:
    members, origin = get_args(declared), get_origin(declared)
    if origin is Literal:
        yield from ((where, f"`{value!r}`") for value in members if not isinstance(value, _PLAIN))
    elif origin in (Union, types.UnionType, tuple):
        for member in members:
            if member is not Ellipsis:
                yield from _faults(where, member, inside)
    elif inspect.isclass(declared) and dataclasses.is_dataclass(declared):
        yield from _class_faults(where, declared, inside)
    elif declared not in (*_PLAIN, None, tuple) and not _is_tensor(declared):
        yield where, f"`{_name(declared)}`"


def _class_faults(where: str, declared: type, inside: frozenset[Any]) -> Iterator[tuple[str, str]]:
    if declared in inside:
        return
    if not is_frozen(declared):
        yield where, "a dataclass that is not frozen"
    try:
        hints = get_type_hints(declared)
    except NameError as error:
        yield where, f"annotated with `{error.name}`, which does not resolve"
        return
    for field in dataclasses.fields(declared):
        if not field.init:
            yield f"`{_name(declared)}.{field.name}`", "a field that `__init__` does not take"
        yield from _faults(f"`{_name(declared)}.{field.name}`", hints[field.name], inside | {declared})


def is_frozen(declared: type) -> bool:
    """True for a frozen dataclass."""
    return bool(vars(declared)["__dataclass_params__"].frozen)


def _is_tensor(declared: Any) -> bool:
    """True for torch's Tensor and jaxtyping's names for it; torch itself need not be loaded to tell."""
    if not inspect.isclass(declared):
        return False
    if issubclass(declared, AbstractArray):
        return _is_tensor(declared.array_type)
    return f"{declared.__module__}.{declared.__qualname__}" == "torch.Tensor"


def _name(declared: Any) -> str:
    return declared.__name__ if inspect.isclass(declared) else str(declared)
