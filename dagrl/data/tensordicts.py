"""TensorDict in and out: building one from columns, and reading or writing object columns and meta_info in one."""

from collections.abc import Mapping
from typing import Any

import numpy as np
import torch
from tensordict import NonTensorData, NonTensorStack, TensorDict
from torch import Tensor

from dagrl.data.jagged import is_jagged
from dagrl.data.objects import object_array
from dagrl.errors import DataError, DataTypeError


def tensors_of(batch: TensorDict | None) -> dict[str, Tensor]:
    """The columns of a batch by name, none for None.

    Raises:
        DataTypeError: naming a column that is no tensor.
    """
    if batch is None:
        return {}
    if type(batch) is TensorDict:  # without the unwrapping below, which costs more than cutting a batch
        plain: dict[str, Any] = dict(batch.items())
        if all(isinstance(value, Tensor) for value in plain.values()):
            return plain
    columns = _items(batch)
    for name, value in columns.items():
        if not isinstance(value, Tensor):
            raise DataTypeError(f"column `{name}` of the batch is a {type(value).__name__}, not a tensor")
    return columns


def build_tensordict(tensors: Mapping[str, Any], num_batch_dims: int) -> TensorDict:
    """A TensorDict of columns that share their first ``num_batch_dims`` dims.

    Raises:
        DataTypeError: naming a column that is no tensor.
        DataError: naming a column with other batch dims than the first.
    """
    if num_batch_dims < 1:
        raise DataError(f"`num_batch_dims` is {num_batch_dims}, it must be at least 1")
    first, size = "", ()
    for name, value in tensors.items():
        if not isinstance(value, Tensor):
            raise DataTypeError(f"column `{name}` is a {type(value).__name__}, not a tensor")
        if is_jagged(value) and num_batch_dims > 1:
            raise DataError(f"column `{name}` is jagged, it has one batch dim and not {num_batch_dims}")
        if value.ndim < num_batch_dims:
            raise DataError(f"column `{name}` of shape {tuple(value.shape)} lacks {num_batch_dims} batch dims")
        here = tuple(value.shape[:num_batch_dims])
        first, size = (first, size) if first else (name, here)
        if here != size:
            raise DataError(f"column `{name}` has batch dims {here}, column `{first}` has {size}")
    return TensorDict(dict(tensors), batch_size=size)


def batch_of(columns: dict[Any, Any], like: TensorDict, rows: int | None = None) -> TensorDict:
    """A TensorDict of checked columns, with the device and the batch dims of another, but for the number of ``rows``.

    The public constructor checks every column again, which takes longer than cutting one.
    """
    size = like.batch_size if rows is None else torch.Size((rows, *like.batch_size[1:]))
    return TensorDict._new_unsafe(columns, batch_size=size, device=like.device)  # pyright: ignore[reportPrivateUsage]


def as_tensordict(
    batch: TensorDict | None, objects: Mapping[str, np.ndarray], meta: Mapping[str, Any], rows: int
) -> TensorDict:
    """Everything in one new TensorDict: object columns as stacks of non-tensor data, meta_info as single data.

    Raises:
        DataError: naming a meta_info key that is also a column.
    """
    stacks = {name: NonTensorStack(*map(NonTensorData, values)) for name, values in objects.items()}
    columns = {**tensors_of(batch), **stacks}
    for key in meta:
        if key in columns:
            raise DataError(f"meta_info key `{key}` is also a column")
    single = {key: NonTensorData(value) for key, value in meta.items()}
    size = [rows] if batch is None else batch.batch_size
    return TensorDict({**columns, **single}, batch_size=size, device=None if batch is None else batch.device)


def from_tensordict(
    source: TensorDict, num_batch_dims: int
) -> tuple[TensorDict, dict[str, np.ndarray], dict[str, Any]]:
    """The batch, object columns and meta_info that `as_tensordict` put together.

    Raises:
        DataTypeError: naming a column that is neither a tensor nor non-tensor data.
    """
    tensors: dict[str, Tensor] = {}
    objects: dict[str, np.ndarray] = {}
    meta: dict[str, Any] = {}
    for name, value in _items(source).items():
        if isinstance(value, Tensor):
            tensors[name] = value
        elif isinstance(value, NonTensorStack):
            objects[name] = object_array([each.data if isinstance(each, NonTensorData) else each for each in value])
        elif isinstance(value, NonTensorData):
            meta[name] = value.data
        else:
            raise DataTypeError(f"column `{name}` is a {type(value).__name__}, neither a tensor nor non-tensor data")
    if tensors:
        return build_tensordict(tensors, num_batch_dims), objects, meta
    return TensorDict({}, batch_size=source.batch_size[:num_batch_dims]), objects, meta


def _items(source: TensorDict) -> dict[str, Any]:
    """What is stored, not unwrapped."""
    return {str(name): source.get(name) for name in source.keys()}  # noqa: SIM118 - iterating a TensorDict gives rows
