"""DataProto: a batch of rows as tensor columns, object columns and meta_info; the payload of every worker call.

Methods return new batches that share tensors and objects with the receiver where they can. Only `to`, `reorder`,
`pop` and `rename` change their receiver, and nothing changes its arguments.
"""

import copy
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from itertools import pairwise
from typing import Any

import numpy as np
import torch
from tensordict import TensorDict
from torch import Tensor

from dagrl.data.equality import equal
from dagrl.data.keys import check_at_least, chosen, listed, names_of, renamed, require, without
from dagrl.data.merge import (
    check_columns,
    concat_meta,
    concat_objects,
    concat_tensors,
    union_meta,
    union_numpy_dict,
    union_tensor_dict,
)
from dagrl.data.objects import object_column, own_copies
from dagrl.data.row_index import RowsLike, check_row, mini_batches, row_index, single_row
from dagrl.data.tensordicts import as_tensordict, build_tensordict, from_tensordict, tensors_of
from dagrl.data.wire import state_received, state_to_send
from dagrl.errors import DataError, DataTypeError, MissingColumnError, RowIndexError

__all__ = [
    "DataError",
    "DataProto",
    "DataProtoItem",
    "DataTypeError",
    "MissingColumnError",
    "RowIndexError",
    "pad_dataproto_to_divisor",
    "union_numpy_dict",
    "union_tensor_dict",
    "unpad_dataproto",
]


@dataclass
class DataProtoItem:
    """One row: tensors without the row dim, and plain values."""

    batch: TensorDict | None = None
    non_tensor_batch: dict[str, Any] = field(default_factory=dict)
    meta_info: dict[str, Any] = field(default_factory=dict)


@dataclass
class DataProto:
    """Rows as tensor columns (``batch``), object columns of shape (rows,) and what is true of all rows.

    Lists and arrays given for an object column become arrays of dtype object. Two batches are equal if
    their columns and meta_info are; NaN equals NaN.

    Raises:
        DataError: if the columns disagree on the number of rows, naming the column.
    """

    batch: TensorDict | None = None
    non_tensor_batch: dict[str, np.ndarray] = field(default_factory=dict)
    meta_info: dict[str, Any] = field(default_factory=dict)

    def __post_init__(self) -> None:
        self.non_tensor_batch = {name: object_column(name, value) for name, value in self.non_tensor_batch.items()}
        self.meta_info = dict(self.meta_info)
        self.check_consistency()

    def __len__(self) -> int:
        if self.batch is not None:
            return self.batch.batch_size[0]
        return next((len(value) for value in self.non_tensor_batch.values()), 0)

    def __eq__(self, other: object) -> bool:
        if not isinstance(other, DataProto):
            return NotImplemented
        return len(self) == len(other) and all(
            equal(mine, theirs)
            for mine, theirs in (
                (tensors_of(self.batch), tensors_of(other.batch)),
                (self.non_tensor_batch, other.non_tensor_batch),
                (self.meta_info, other.meta_info),
            )
        )

    def __getstate__(self) -> dict[str, Any]:
        return state_to_send(vars(self))

    def __setstate__(self, state: dict[str, Any]) -> None:
        vars(self).update(state_received(state))

    @classmethod
    def from_dict(
        cls,
        tensors: Mapping[str, Tensor] | None = None,
        non_tensors: Mapping[str, Sequence[Any] | np.ndarray] | None = None,
        meta_info: Mapping[str, Any] | None = None,
        num_batch_dims: int = 1,
    ) -> "DataProto":
        """A batch of tensor columns, which share their first ``num_batch_dims`` dims, and object columns."""
        batch = build_tensordict(tensors, num_batch_dims) if tensors else None
        objects = {name: object_column(name, value) for name, value in (non_tensors or {}).items()}
        return cls(batch, objects, dict(meta_info or {}))

    @classmethod
    def from_single_dict(
        cls, data: Mapping[str, Tensor | np.ndarray | Sequence[Any]], meta_info: Mapping[str, Any] | None = None
    ) -> "DataProto":
        """A batch whose tensors become tensor columns, and whose arrays and lists become object columns."""
        tensors = {name: value for name, value in data.items() if isinstance(value, Tensor)}
        objects = {name: value for name, value in data.items() if not isinstance(value, Tensor)}
        return cls.from_dict(tensors, objects, meta_info)

    @classmethod
    def from_tensordict(
        cls, tensor_dict: TensorDict, meta_info: Mapping[str, Any] | None = None, num_batch_dims: int = 1
    ) -> "DataProto":
        """A batch from a TensorDict: stacks of non-tensor data become object columns, single data meta_info."""
        batch, objects, meta = from_tensordict(tensor_dict, num_batch_dims)
        return cls(batch, objects, union_meta(meta, meta_info or {}))

    def to_tensordict(self) -> TensorDict:
        """All columns and meta_info in one new TensorDict, as `from_tensordict` reads it."""
        return as_tensordict(self.batch, self.non_tensor_batch, self.meta_info, len(self))

    def __getitem__(self, item: int | RowsLike) -> "DataProto | DataProtoItem":
        row = single_row(item)
        if row is None:
            return self.select_idxs(item)  # pyright: ignore[reportArgumentType] - a single row is handled
        row = check_row(row, len(self))
        batch = None if self.batch is None else self.batch[row]
        return DataProtoItem(batch, {k: v[row] for k, v in self.non_tensor_batch.items()}, dict(self.meta_info))

    def select_idxs(self, idxs: RowsLike) -> "DataProto":
        """The rows at the given positions, in that order, or those whose bool is true."""
        if isinstance(idxs, slice) and (idxs.step is None or idxs.step > 0):
            return self._rows(idxs)
        return self._rows(row_index(idxs, len(self)))

    def slice(self, start: int | None = None, end: int | None = None, step: int | None = None) -> "DataProto":
        """The rows of ``[start:end:step]``."""
        return self.select_idxs(slice(start, end, step))

    def chunk(self, chunks: int, *, uneven: bool = False) -> "list[DataProto]":
        """Exactly ``chunks`` parts in order; with ``uneven`` the first rows % chunks parts are one row longer.

        Raises:
            DataError: if the rows do not divide and ``uneven`` is false.
        """
        check_at_least(1, chunks=chunks)
        size, longer = divmod(len(self), chunks)
        if longer and not uneven:
            fix = "pass uneven=True, or pad with `pad_dataproto_to_divisor`"
            raise DataError(f"{len(self)} rows do not divide into {chunks} equal chunks; {fix}")
        bounds = [part * size + min(part, longer) for part in range(chunks + 1)]
        return [self._rows(slice(start, end)) for start, end in pairwise(bounds)]

    def split(self, split_size: int) -> "list[DataProto]":
        """Parts of ``split_size`` rows, the last maybe shorter; at least one part, so columns are never lost."""
        check_at_least(1, split_size=split_size)
        starts = range(0, max(len(self), 1), split_size)
        return [self._rows(slice(start, start + split_size)) for start in starts]

    @staticmethod
    def concat(data: "Sequence[DataProto]") -> "DataProto":
        """All parts stacked in order; meta_info merged.

        Raises:
            DataError: naming the column and part that do not fit, or the meta_info key whose values clash.
        """
        if not data:
            raise DataError("concat: there are no parts")
        for part in data:
            part.check_consistency()
        check_columns(data)
        meta = concat_meta([part.meta_info for part in data])
        return DataProto(concat_tensors(data), concat_objects(data), meta)

    def reorder(self, indices: RowsLike) -> None:
        """Put the rows of this batch into the order of ``indices``, a permutation; changes the receiver.

        Raises:
            DataError: if a row would be lost or doubled.
        """
        order = row_index(indices, len(self))
        if not torch.equal(order.sort().values, torch.arange(len(self))):
            raise DataError(f"reorder needs each of the {len(self)} rows once; `select_idxs` chooses rows")
        rows = self._rows(order)
        self.batch, self.non_tensor_batch = rows.batch, rows.non_tensor_batch

    def repeat(self, repeat_times: int = 2, interleave: bool = True) -> "DataProto":
        """Every row ``repeat_times`` times, side by side or, without ``interleave``, batch after batch.

        No row of the result shares an object with another or with the receiver.
        """
        check_at_least(0, repeat_times=repeat_times)
        rows = torch.arange(len(self))
        return _with_own_objects(
            self._rows(rows.repeat_interleave(repeat_times) if interleave else rows.repeat(repeat_times))
        )

    def sample_level_repeat(self, repeat_times: Sequence[int] | np.ndarray | Tensor) -> "DataProto":
        """Every row as often as its own number says, side by side; objects are copied as in `repeat`."""
        times = torch.as_tensor(repeat_times if len(repeat_times) else np.empty(0, np.int64)).cpu()
        if times.shape != (len(self),):
            raise DataError(f"repeat_times of shape {tuple(times.shape)} does not fit a batch of {len(self)} rows")
        if times.dtype == torch.bool or times.dtype.is_floating_point or bool((times < 0).any()):
            raise DataError("repeat_times must be integers of at least 0")
        return _with_own_objects(self._rows(torch.arange(len(self)).repeat_interleave(times.long())))

    def make_iterator(
        self,
        mini_batch_size: int,
        epochs: int,
        seed: int | None = None,
        dataloader_kwargs: Mapping[str, bool] | None = None,
    ) -> "Iterator[DataProto]":
        """Mini-batches of every epoch, the last of each maybe shorter.

        ``dataloader_kwargs`` may hold ``shuffle`` (a new order each epoch, from ``seed``) and ``drop_last``.
        """
        check_at_least(1, mini_batch_size=mini_batch_size)
        check_at_least(0, epochs=epochs)
        options = {"shuffle": False, "drop_last": False, **(dataloader_kwargs or {})}
        unknown = sorted(options.keys() - {"shuffle", "drop_last"})
        if unknown:
            raise DataError(f"dataloader_kwargs takes `shuffle` and `drop_last`, not {listed(unknown)}")
        order = mini_batches(len(self), mini_batch_size, epochs, seed, **options)
        return (self._rows(index) for index in order)

    def _rows(self, index: "Tensor | slice") -> "DataProto":
        """The rows at checked positions."""
        self.check_consistency()
        batch = None if self.batch is None else self.batch[index]
        where = index if isinstance(index, slice) else index.numpy()
        objects = {name: value[where] for name, value in self.non_tensor_batch.items()}
        return DataProto(batch, objects, self.meta_info)

    def select(
        self,
        batch_keys: Sequence[str] | None = None,
        non_tensor_batch_keys: Sequence[str] | None = None,
        meta_info_keys: Sequence[str] | None = None,
        deepcopy: bool = False,
    ) -> "DataProto":
        """The named columns and meta_info keys; None selects all of a kind."""
        tensors, objects, meta = self._pick(batch_keys, non_tensor_batch_keys, meta_info_keys)
        batch = self._with(tensors)
        if not deepcopy:
            return DataProto(batch, objects, meta)
        return _with_own_objects(DataProto(None if batch is None else batch.clone(), objects, copy.deepcopy(meta)))

    def pop(
        self,
        batch_keys: Sequence[str] | None = None,
        non_tensor_batch_keys: Sequence[str] | None = None,
        meta_info_keys: Sequence[str] | None = None,
    ) -> "DataProto":
        """Take the named columns and keys out of this batch; None takes none of a kind; changes the receiver."""
        tensors, objects, meta = self._pick(batch_keys or (), non_tensor_batch_keys or (), meta_info_keys or ())
        popped = DataProto(self._with(tensors) if tensors else None, objects, meta)
        if tensors:
            self.batch = self._with(without(tensors_of(self.batch), tensors))
        self.non_tensor_batch = without(self.non_tensor_batch, objects)
        self.meta_info = without(self.meta_info, meta)
        return popped

    def rename(
        self, old_keys: str | Sequence[str] | None = None, new_keys: str | Sequence[str] | None = None
    ) -> "DataProto":
        """Rename columns, tensor or object, in place and return this batch; changes the receiver."""
        old, new = names_of(old_keys or ()), names_of(new_keys or ())
        if len(old) != len(new):
            raise DataError(f"rename: {len(old)} old keys but {len(new)} new ones")
        tensors = tensors_of(self.batch)
        require(old, {**tensors, **self.non_tensor_batch}, "column")
        to = dict(zip(old, new, strict=True))
        names = [to.get(name, name) for name in (*tensors, *self.non_tensor_batch)]
        twice = sorted({name for name in names if names.count(name) > 1})
        if twice:
            raise DataError(f"rename: two columns would be named {listed(twice)}")
        self.batch = self._with(renamed(tensors, to))
        self.non_tensor_batch = renamed(self.non_tensor_batch, to)
        return self

    def union(self, other: "DataProto") -> "DataProto":
        """A new batch with the columns and meta_info of both, for the same rows in the same order.

        Raises:
            DataError: if the numbers of rows differ, or naming a column or key whose values differ.
        """
        if other._has_columns() and self._has_columns() and len(self) != len(other):
            raise DataError(f"union: one side has {len(self)} rows, the other {len(other)}")
        meta = union_meta(self.meta_info, other.meta_info)
        objects = union_numpy_dict(self.non_tensor_batch, other.non_tensor_batch)
        batches = [batch for batch in (self.batch, other.batch) if batch is not None]
        batch = union_tensor_dict(batches[0], batches[-1]) if batches else None
        return DataProto(batch, objects, meta)

    def to(self, device: str | torch.device) -> "DataProto":
        """Move the tensor columns to ``device`` and return this batch; changes the receiver."""
        if self.batch is not None:
            self.batch = self.batch.to(device)
        return self

    def _has_columns(self) -> bool:
        return self.batch is not None or bool(self.non_tensor_batch)

    def _with(self, tensors: Mapping[str, Tensor]) -> TensorDict | None:
        if self.batch is None:
            return None
        return TensorDict(dict(tensors), batch_size=self.batch.batch_size, device=self.batch.device)

    def _pick(
        self, tensors: Sequence[str] | None, objects: Sequence[str] | None, meta: Sequence[str] | None
    ) -> tuple[dict[str, Tensor], dict[str, np.ndarray], dict[str, Any]]:
        return (
            chosen(tensors, tensors_of(self.batch), "tensor column"),
            chosen(objects, self.non_tensor_batch, "object column"),
            chosen(meta, self.meta_info, "meta_info key"),
        )

    def check_consistency(self) -> None:
        """Raise a DataError that names the first column that does not fit the others."""
        if self.batch is not None and not self.batch.batch_size:
            raise DataError("the TensorDict of a batch needs at least one batch dim")
        columns = tensors_of(self.batch)
        rows = len(self)
        objects: dict[str, Any] = self.non_tensor_batch
        for name, value in objects.items():
            if not isinstance(value, np.ndarray) or value.ndim == 0:
                raise DataTypeError(f"object column `{name}` is a {type(value).__name__}, not an array of objects")
            if len(value) != rows:
                raise DataError(f"object column `{name}` has {len(value)} rows, the batch has {rows}")
            if name in columns:
                raise DataError(f"column `{name}` is both a tensor and an object column")

    def get_data_info(self) -> str:
        """The columns with their shapes, dtypes and devices, and the types in meta_info, as indented lines."""
        tensors, objects = tensors_of(self.batch), self.non_tensor_batch
        lines = ["batch", *(f"  {k}: {tuple(v.shape)} ({v.dtype}) on {v.device}" for k, v in tensors.items())]
        lines += ["non_tensor_batch", *(f"  {k}: ndarray{v.shape} ({v.dtype})" for k, v in objects.items())]
        lines += ["meta_info", *(f"  {k}: {type(v).__name__}" for k, v in self.meta_info.items())]
        return "\n".join(lines)

    def print_size(self, prefix: str = "") -> None:
        """Print how much the tensor columns hold and how many objects there are."""
        size = sum(value.nbytes for value in tensors_of(self.batch).values()) / 1024**3
        objects = sum(value.size for value in self.non_tensor_batch.values())
        message = f"Size of tensordict: {size} GB, number of objects in non_tensor_batch: {objects}"
        print(f"{prefix}, {message}" if prefix else message)  # noqa: T201 - printing is what it is for


def pad_dataproto_to_divisor(data: DataProto, size_divisor: int) -> tuple[DataProto, int]:
    """The batch with rows repeated from the first on until ``size_divisor`` divides it, and how many were added.

    An empty batch stays empty. The added rows share no objects with the others.
    """
    check_at_least(1, size_divisor=size_divisor)
    rows = len(data)
    added = -rows % size_divisor
    if not added:
        return data.select(), 0
    return _with_own_objects(data.select_idxs(torch.arange(rows + added) % rows), rows), added


def unpad_dataproto(data: DataProto, pad_size: int) -> DataProto:
    """The batch without its last ``pad_size`` rows."""
    if not 0 <= pad_size <= len(data):
        raise DataError(f"cannot remove {pad_size} padding rows from a batch of {len(data)} rows")
    return data.slice(0, len(data) - pad_size)


def _with_own_objects(data: DataProto, start: int = 0) -> DataProto:
    """The batch with deep copies of the objects of its rows from ``start`` on."""
    objects = {name: own_copies(value, start) for name, value in data.non_tensor_batch.items()}
    return DataProto(data.batch, objects, data.meta_info)
