"""Batches among the arguments of a call: what they are, how many rows they have, copies of them."""

from __future__ import annotations

import copy
import sys
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

from dagrl.controller.dispatch import ArgumentError

if TYPE_CHECKING:
    from dagrl.data.proto import DataProto


def is_batch(value: Any) -> bool:
    """Whether the value is a DataProto or a TensorDict; loads neither."""
    return is_proto(value) or isinstance(value, _loaded("tensordict", "TensorDictBase"))


def is_proto(value: Any) -> bool:
    """Whether the value is a DataProto; does not load it."""
    return isinstance(value, _loaded("dagrl.data.proto", "DataProto"))


def as_proto(value: Any) -> DataProto:
    """The batch as a DataProto."""
    from dagrl.data.proto import DataProto

    return value if isinstance(value, DataProto) else DataProto.from_tensordict(value)


def common_rows(values: Mapping[int | str, Any]) -> int:
    """The number of rows of every batch among the arguments; 0 where there is none.

    Raises:
        ArgumentError: when two differ.
    """
    rows = {which: len(value) for which, value in values.items() if is_batch(value)}
    first = next(iter(rows.values()), 0)
    for which, count in rows.items():
        if count != first:
            raise ArgumentError(which, f"has {count} rows, but the first batch of the call has {first}")
    return first


def own_copy(value: Any) -> Any:
    """A copy of a batch, tensor or array, and of a dict, list or tuple with copies in it; else the value itself."""
    kind = type(value)
    if kind is dict:
        return {key: own_copy(each) for key, each in value.items()}
    if kind is list or kind is tuple:
        return kind(map(own_copy, value))
    tensors = _loaded("torch", "Tensor")
    if kind in tensors:  # also one that was computed, which refuses a deep copy; and of a view no more than it shows
        return value.detach().clone().requires_grad_(value.requires_grad)
    arrays = (*tensors, *_loaded("numpy", "ndarray"))
    return copy.deepcopy(value) if is_batch(value) or isinstance(value, arrays) else value


def _loaded(module: str, name: str) -> tuple[type, ...]:
    """The class if its module is loaded: without it there are no instances."""
    found = sys.modules.get(module)
    return () if found is None else (vars(found)[name],)
