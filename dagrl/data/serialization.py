"""Tensors and TensorDicts as plain tuples of names, shapes and bytes, for transports of one's own.

A batch needs none of this: it pickles in the same manner by itself (`dagrl.data.wire`).
"""

from typing import Any

import numpy as np
import torch
from tensordict import TensorDict
from torch import Tensor

from dagrl.data.jagged import Jagged, SharedOffsets, is_jagged, jagged_parts
from dagrl.data.tensor_bytes import dense_bytes, from_bytes
from dagrl.data.tensordicts import tensors_of
from dagrl.data.wire import check_sendable
from dagrl.errors import DataError

#: The name of a dtype, the shape, and the bytes in C order.
Serialized = tuple[str, tuple[int, ...], memoryview]
_JAGGED = "jagged"


def serialize_single_tensor(obj: Tensor) -> Serialized:
    """A dense tensor as its dtype's name, its shape and a view of its bytes, which is no copy where it need not be.

    Raises:
        DataTypeError: for a tensor without bytes of its own, such as a sparse one.
    """
    check_sendable("`obj`", obj)
    if is_jagged(obj):
        raise DataError("a jagged tensor is several tensors; `serialize_tensordict` takes it as a column")
    dtype, shape, data = dense_bytes(obj.detach())
    return str(dtype).removeprefix("torch."), shape, data.data


def deserialize_single_tensor(arr: Any) -> Tensor:
    """The tensor; it is the given memory itself where that is writable, else a copy."""
    dtype, shape, data = arr
    return from_bytes(
        _dtype(dtype), tuple(shape), np.frombuffer(data, np.uint8) if len(data) else np.empty(0, np.uint8)
    )


def serialize_tensordict(batch: TensorDict) -> tuple[tuple[int, ...], str | None, dict[str, tuple[Any, ...]]]:
    """The batch size, the device and every column: a tensor, or ("jagged", (ragged dim, values, offsets)).

    Raises:
        DataTypeError: naming a column that is neither a dense nor a jagged tensor.
    """
    device = None if batch.device is None else str(batch.device)
    return (
        tuple(batch.batch_size),
        device,
        {name: _serialized(name, value) for name, value in tensors_of(batch).items()},
    )


def deserialize_tensordict(arr: Any) -> TensorDict:
    """The TensorDict, on the CPU."""
    size, device, columns = arr
    shared = SharedOffsets()
    tensors = {name: _deserialized(column, shared) for name, column in columns.items()}
    return TensorDict(tensors, batch_size=size, device=None if device is None else "cpu")


def _serialized(name: str, column: Tensor) -> tuple[Any, ...]:
    check_sendable(f"column `{name}`", column)
    if not is_jagged(column):
        return serialize_single_tensor(column)
    parts = jagged_parts(column.detach())
    return _JAGGED, (parts.dim, serialize_single_tensor(parts.values), serialize_single_tensor(parts.offsets))


def _deserialized(column: tuple[Any, ...], shared: SharedOffsets) -> Tensor:
    if column[0] != _JAGGED:
        return deserialize_single_tensor(column)
    dim, values, offsets = column[1]
    return shared.column(Jagged(deserialize_single_tensor(values), deserialize_single_tensor(offsets), dim))


def _dtype(name: str) -> torch.dtype:
    dtype = getattr(torch, name, None)
    if not isinstance(dtype, torch.dtype):
        raise DataError(f"`{name}` is no dtype of this version of torch")
    return dtype
