"""The rows of a batch as groups along a second dim, and back; long rows as several shorter ones."""

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any, TypeVar, cast

import numpy as np
from tensordict import TensorDict
from torch import Tensor

from dagrl.data.jagged import SharedOffsets, is_jagged, jagged_parts, jagged_split_rows
from dagrl.data.keys import check_at_least
from dagrl.data.objects import object_array
from dagrl.data.tensordicts import tensors_of
from dagrl.errors import DataError, DataTypeError

if TYPE_CHECKING:
    from dagrl.data.batch_state import BatchState

Batch = TypeVar("Batch", bound="BatchState")


def fold_batch_dim(data: Batch, new_batch_size: int) -> Batch:
    """The batch with columns [B ...] as [new_batch_size, B / new_batch_size, ...], objects as arrays of that many.

    Raises:
        DataError: if the rows do not divide, or naming a jagged column, which cannot have two batch dims.
    """
    check_at_least(1, new_batch_size=new_batch_size)
    if len(data) % new_batch_size:
        raise DataError(f"{len(data)} rows do not fold into {new_batch_size} groups of equal size")
    inner = len(data) // new_batch_size
    tensors = {name: _dense(name, value) for name, value in tensors_of(data.batch).items()}
    folded = {name: value.unflatten(0, (new_batch_size, inner)) for name, value in tensors.items()}
    objects = {
        name: object_array([value[group * inner : (group + 1) * inner] for group in range(new_batch_size)])
        for name, value in data.non_tensor_batch.items()
    }
    return type(data)(_with_rows(data.batch, folded, new_batch_size), objects, data.meta_info)


def unfold_batch_dim(data: Batch, batch_dims: int = 2) -> Batch:
    """The batch with its first ``batch_dims`` dims as one, as it was before `fold_batch_dim`.

    Objects must be lists, tuples or arrays, one item for each row that they become.

    Raises:
        DataError: naming a column that has not these dims.
    """
    check_at_least(1, batch_dims=batch_dims)
    tensors = {name: _dense(name, value) for name, value in tensors_of(data.batch).items()}
    sizes = _leading_sizes(tensors, batch_dims)
    flat = {name: value.flatten(0, batch_dims - 1) for name, value in tensors.items()}
    objects = {name: _flat_objects(name, value, batch_dims, sizes[1:]) for name, value in data.non_tensor_batch.items()}
    rows = int(np.prod(sizes)) if sizes else len(data)
    return type(data)(_with_rows(data.batch, flat, rows), objects, data.meta_info)


def unfold_tensors(columns: Mapping[str, Tensor], num_parts: int) -> dict[str, Tensor]:
    """Every row of every column cut along its second dim into so many rows; values are shared.

    Raises:
        DataError: naming a column whose second dim does not divide.
    """
    shared = SharedOffsets()
    return {name: _unfold_tensor(name, column, num_parts, shared) for name, column in columns.items()}


def unfold_objects(columns: Mapping[str, np.ndarray], num_parts: int) -> dict[str, np.ndarray]:
    """Every list, tuple, string or array of every column cut into so many.

    Raises:
        DataError: naming the column and row of a value that has no length, or one that does not divide.
    """
    return {
        name: object_array([part for row, value in enumerate(column) for part in _parts(name, row, value, num_parts)])
        for name, column in columns.items()
    }


def _unfold_tensor(name: str, column: Tensor, num_parts: int, shared: SharedOffsets) -> Tensor:
    if is_jagged(column):
        parts = jagged_parts(column)
        if parts.dim != 1:
            raise DataError(f"column `{name}` is jagged in dim {parts.dim}, only dim 1 can be cut")
        return shared.column(jagged_split_rows(name, parts, num_parts))
    if column.ndim < 2 or column.shape[1] % num_parts:
        raise DataError(f"dim 1 of column `{name}` of shape {tuple(column.shape)} does not divide by {num_parts}")
    rows, width, *rest = column.shape
    return column.reshape(rows * num_parts, width // num_parts, *rest)


def _parts(name: str, row: int, value: Any, num_parts: int) -> list[Any]:
    if not isinstance(value, list | tuple | str | np.ndarray | Tensor):
        raise DataTypeError(f"row {row} of column `{name}` is a {type(value).__name__}, which cannot be cut")
    length = len(cast("Sequence[Any]", value))
    if length % num_parts:
        raise DataError(f"row {row} of column `{name}` has length {length}, which does not divide by {num_parts}")
    size = length // num_parts
    return [value[part * size : (part + 1) * size] for part in range(num_parts)]


def _dense(name: str, column: Tensor) -> Tensor:
    if is_jagged(column):
        fix = "pad it first, or keep the rows unfolded"
        raise DataError(f"column `{name}` is jagged, and torch has no jagged tensors of two batch dims; {fix}")
    return column


def _with_rows(batch: TensorDict | None, columns: dict[str, Tensor], rows: int) -> TensorDict | None:
    return None if batch is None else TensorDict(columns, batch_size=[rows], device=batch.device)


def _leading_sizes(tensors: Mapping[str, Tensor], batch_dims: int) -> tuple[int, ...]:
    sizes: tuple[int, ...] = ()
    for name, value in tensors.items():
        here = tuple(value.shape[:batch_dims])
        if len(here) < batch_dims or (sizes and here != sizes):
            wanted = f"the {batch_dims} batch dims {sizes}" if sizes else f"{batch_dims} batch dims"
            raise DataError(f"column `{name}` of shape {tuple(value.shape)} lacks {wanted}")
        sizes = here
    return sizes


def _flat_objects(name: str, values: np.ndarray, batch_dims: int, sizes: Sequence[int]) -> np.ndarray:
    """The objects ``batch_dims - 1`` levels down; ``sizes`` of the levels where tensors say them."""
    for level in range(batch_dims - 1):
        for row, value in enumerate(values):
            if not isinstance(value, list | tuple | np.ndarray):
                raise DataTypeError(f"row {row} of column `{name}` is a {type(value).__name__}, not several objects")
            if sizes and len(value) != sizes[level]:
                raise DataError(f"row {row} of column `{name}` has {len(value)} objects, its tensors {sizes[level]}")
        values = object_array([each for value in values for each in value])
    return values
