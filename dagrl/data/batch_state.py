"""What a batch is made of, and how rows and columns of it become another batch."""

import copy
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from itertools import accumulate, pairwise
from typing import Any, Self

import numpy as np
from tensordict import TensorDict
from torch import Tensor

from dagrl.data.column_rows import cut_rows, slice_rows, take_rows
from dagrl.data.consistency import check_consistency, num_rows
from dagrl.data.equality import equal
from dagrl.data.objects import object_column, own_copies
from dagrl.data.tensordicts import batch_of, tensors_of
from dagrl.data.wire import state_to_send


@dataclass(eq=False)
class BatchState:
    """The three kinds of content of a batch."""

    batch: TensorDict | None = None
    non_tensor_batch: dict[str, np.ndarray] = field(default_factory=dict)
    meta_info: dict[str, Any] = field(default_factory=dict)

    def __post_init__(self) -> None:
        self.non_tensor_batch = {name: object_column(name, value) for name, value in self.non_tensor_batch.items()}
        self.meta_info = dict(self.meta_info)
        self.check_consistency()

    def __len__(self) -> int:
        return num_rows(self.batch, self.non_tensor_batch)

    def __eq__(self, other: object) -> bool:
        if not isinstance(other, BatchState):
            return NotImplemented
        return len(self) == len(other) and equal(self._content(), other._content())

    def __getstate__(self) -> dict[str, Any]:
        return state_to_send(vars(self))

    def __copy__(self) -> Self:
        copied = self._made(self.batch, self.non_tensor_batch, {})
        copied.meta_info = self.meta_info
        return copied

    def __deepcopy__(self, memo: dict[int, Any]) -> Self:
        return self._made(*copy.deepcopy((self.batch, self.non_tensor_batch, self.meta_info), memo))

    def check_consistency(self) -> None:
        """Raise a DataError that names the first column that does not fit the others."""
        check_consistency(self.batch, self.non_tensor_batch)

    def _made(self, batch: TensorDict | None, objects: dict[str, np.ndarray], meta: Mapping[str, Any]) -> Self:
        """A batch of columns that are known to fit; checking each chunk again would take longer than cutting it."""
        made = object.__new__(type(self))
        made.batch, made.non_tensor_batch, made.meta_info = batch, objects, dict(meta)
        return made

    def rows_at(self, index: Tensor | slice, own_objects_from: int | None = None) -> Self:
        """The rows at checked positions; those of ``own_objects_from`` on get deep copies of their objects."""
        self.check_consistency()
        where = index if isinstance(index, slice) else index.numpy()
        objects = {name: value[where] for name, value in self.non_tensor_batch.items()}
        if own_objects_from is not None:
            objects = {name: own_copies(value, own_objects_from) for name, value in objects.items()}
        return self._made(self._tensor_rows(index), objects, self.meta_info)

    def _tensor_rows(self, index: Tensor | slice) -> TensorDict | None:
        if self.batch is None:
            return None
        columns = tensors_of(self.batch)
        if isinstance(index, slice):
            return batch_of(slice_rows(columns, index), self.batch, len(range(len(self))[index]))
        return batch_of(take_rows(columns, index), self.batch, len(index))

    def _cut(self, sizes: Sequence[int]) -> "list[Self]":
        """Parts of so many rows each, in order, sharing the tensors."""
        self.check_consistency()
        batch = self.batch
        bounds = list(pairwise(accumulate(sizes, initial=0)))
        named = self.non_tensor_batch.items()
        objects = [{name: value[start:end] for name, value in named} for start, end in bounds]
        if batch is None:
            return [self._made(None, each, self.meta_info) for each in objects]
        parts = zip(cut_rows(tensors_of(batch), sizes), objects, sizes, strict=True)
        return [self._made(batch_of(columns, batch, size), each, self.meta_info) for columns, each, size in parts]

    def _take_over(self, rows: Self) -> None:
        self.batch, self.non_tensor_batch = rows.batch, rows.non_tensor_batch

    def _with(self, tensors: Mapping[str, Tensor]) -> TensorDict | None:
        return None if self.batch is None else batch_of(dict(tensors), self.batch)

    def _content(self) -> tuple[dict[str, Tensor], dict[str, np.ndarray], dict[str, Any]]:
        return tensors_of(self.batch), self.non_tensor_batch, self.meta_info
