"""The columns of a batch: selected, taken out, renamed, joined, moved."""

import copy
from collections.abc import Sequence
from typing import Any, Self

import numpy as np
import torch
from torch import Tensor

from dagrl.data.batch_state import BatchState
from dagrl.data.consistency import has_columns
from dagrl.data.keys import chosen, renamed, renaming, without
from dagrl.data.merge import union_meta, union_numpy_dict, union_tensor_dict
from dagrl.data.objects import own_copies
from dagrl.data.tensordicts import tensors_of
from dagrl.errors import DataError


class ColumnMethods(BatchState):
    """Methods that keep the rows and choose columns."""

    def select(
        self,
        batch_keys: Sequence[str] | None = None,
        non_tensor_batch_keys: Sequence[str] | None = None,
        meta_info_keys: Sequence[str] | None = None,
        deepcopy: bool = False,
    ) -> Self:
        """The named columns and meta_info keys; None selects all of a kind."""
        tensors, objects, meta = self._pick(batch_keys, non_tensor_batch_keys, meta_info_keys)
        batch = self._with(tensors)
        if not deepcopy:
            return self._made(batch, objects, meta)
        copied = {name: own_copies(value) for name, value in objects.items()}
        return self._made(None if batch is None else batch.clone(), copied, copy.deepcopy(meta))

    def pop(
        self,
        batch_keys: Sequence[str] | None = None,
        non_tensor_batch_keys: Sequence[str] | None = None,
        meta_info_keys: Sequence[str] | None = None,
    ) -> Self:
        """Take the named columns and keys out of this batch; None takes none of a kind; changes the receiver."""
        tensors, objects, meta = self._pick(batch_keys or (), non_tensor_batch_keys or (), meta_info_keys or ())
        popped = self._made(self._with(tensors) if tensors else None, objects, meta)
        if tensors:
            self.batch = self._with(without(tensors_of(self.batch), tensors))
        self.non_tensor_batch = without(self.non_tensor_batch, objects)
        self.meta_info = without(self.meta_info, meta)
        return popped

    def rename(self, old_keys: str | Sequence[str] | None = None, new_keys: str | Sequence[str] | None = None) -> Self:
        """Rename columns, tensor or object, in place and return this batch; changes the receiver."""
        tensors = tensors_of(self.batch)
        to = renaming(old_keys or (), new_keys or (), {**tensors, **self.non_tensor_batch})
        self.batch = self._with(renamed(tensors, to))
        self.non_tensor_batch = renamed(self.non_tensor_batch, to)
        return self

    def union(self, other: Self) -> Self:
        """A new batch with the columns and meta_info of both, for the same rows in the same order.

        Raises:
            DataError: if the numbers of rows differ, or naming a column or key whose values differ.
        """
        both = all(has_columns(each.batch, each.non_tensor_batch) for each in (self, other))
        if both and len(self) != len(other):
            raise DataError(f"union: one side has {len(self)} rows, the other {len(other)}")
        meta = union_meta(self.meta_info, other.meta_info)
        objects = union_numpy_dict(self.non_tensor_batch, other.non_tensor_batch)
        batches = [batch for batch in (self.batch, other.batch) if batch is not None]
        batch = union_tensor_dict(batches[0], batches[-1]) if batches else None
        return type(self)(batch, objects, meta)

    def to(self, device: str | torch.device) -> Self:
        """Move the tensor columns to ``device`` and return this batch; changes the receiver."""
        if self.batch is not None:
            self.batch = self.batch.to(device)
        return self

    def _pick(
        self, tensors: Sequence[str] | None, objects: Sequence[str] | None, meta: Sequence[str] | None
    ) -> tuple[dict[str, Tensor], dict[str, np.ndarray], dict[str, Any]]:
        return (
            chosen(tensors, tensors_of(self.batch), "tensor column"),
            chosen(objects, self.non_tensor_batch, "object column"),
            chosen(meta, self.meta_info, "meta_info key"),
        )
