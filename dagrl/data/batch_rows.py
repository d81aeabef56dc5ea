"""The rows of a batch: chosen, cut, ordered, repeated, iterated over."""

from collections.abc import Iterator, Mapping, Sequence
from typing import Self

import numpy as np
import torch
from tensordict import TensorDict
from torch import Tensor

from dagrl.data.batch_item import DataProtoItem
from dagrl.data.batch_state import BatchState
from dagrl.data.column_rows import row_of
from dagrl.data.folding import unfold_objects, unfold_tensors
from dagrl.data.keys import require
from dagrl.data.padding import AUTO_PADDING, padding_index
from dagrl.data.row_index import (
    RowsLike,
    check_permutation,
    check_row,
    chunk_sizes,
    mini_batches,
    repeat_counts,
    repeat_index,
    row_index,
    single_row,
    split_sizes,
)
from dagrl.data.tensordicts import batch_of, tensors_of


class RowMethods(BatchState):
    """Methods that keep the columns and choose rows."""

    def __getitem__(self, item: int | RowsLike) -> Self | DataProtoItem:
        row = single_row(item)
        if row is None:
            return self.select_idxs(item)  # pyright: ignore[reportArgumentType] - a single row is handled
        row = check_row(row, len(self))
        batch = None
        if self.batch is not None:
            batch = TensorDict(row_of(tensors_of(self.batch), row), self.batch.batch_size[1:], self.batch.device)
        return DataProtoItem(batch, {k: v[row] for k, v in self.non_tensor_batch.items()}, dict(self.meta_info))

    def select_idxs(self, idxs: RowsLike) -> Self:
        """The rows at the given positions, in that order, or those whose bool is true."""
        if isinstance(idxs, slice) and (idxs.step is None or idxs.step > 0):
            return self.rows_at(idxs)
        return self.rows_at(row_index(idxs, len(self)))

    def slice(self, start: int | None = None, end: int | None = None, step: int | None = None) -> Self:
        """The rows of ``[start:end:step]``."""
        return self.select_idxs(slice(start, end, step))

    def is_padding_enabled(self) -> bool:
        """Whether the batch was made with ``auto_padding``, so that `chunk` may make parts of different lengths."""
        return bool(self.meta_info.get(AUTO_PADDING, False))

    def chunk(self, chunks: int, *, uneven: bool = False) -> "list[Self]":
        """Exactly ``chunks`` parts in order.

        With ``uneven`` or ``auto_padding`` the first rows % chunks parts are one row longer.

        Raises:
            DataError: if the rows do not divide and neither is given.
        """
        return self._cut(chunk_sizes(len(self), chunks, uneven or self.is_padding_enabled()))

    def split(self, split_size: int) -> "list[Self]":
        """Parts of ``split_size`` rows, the last maybe shorter; at least one part, so columns are never lost."""
        return self._cut(split_sizes(len(self), split_size))

    def reorder(self, indices: RowsLike) -> None:
        """Put the rows of this batch into the order of ``indices``, a permutation; changes the receiver.

        Raises:
            DataError: if a row would be lost or doubled.
        """
        self._take_over(self.rows_at(check_permutation(row_index(indices, len(self)), len(self))))

    def repeat(self, repeat_times: int = 2, interleave: bool = True) -> Self:
        """Every row ``repeat_times`` times, side by side or, without ``interleave``, batch after batch.

        No row of the result shares an object with another or with the receiver.
        """
        return self.rows_at(repeat_index(len(self), repeat_times, interleave), own_objects_from=0)

    def sample_level_repeat(self, repeat_times: Sequence[int] | np.ndarray | Tensor) -> Self:
        """Every row as often as its own number says, side by side; objects are copied as in `repeat`."""
        counts = repeat_counts(repeat_times, len(self))
        return self.rows_at(torch.arange(len(self)).repeat_interleave(counts), own_objects_from=0)

    def unfold_column_chunks(self, n_split: int, split_keys: Sequence[str] | None = None) -> Self:
        """Every row as ``n_split`` rows side by side.

        The columns of ``split_keys`` are cut along their second dim (an object along its length), the others repeated.

        Raises:
            MissingColumnError: if there is no such column.
            DataError: naming a column whose second dim does not divide.
        """
        repeated = self.repeat(n_split)
        tensors, objects = tensors_of(self.batch), self.non_tensor_batch
        keys = list(split_keys or ())
        require(keys, {**tensors, **objects}, "column")
        cut = unfold_tensors({key: tensors[key] for key in keys if key in tensors}, n_split)
        batch = None if repeated.batch is None else batch_of({**tensors_of(repeated.batch), **cut}, repeated.batch)
        cut_objects = unfold_objects({key: objects[key] for key in keys if key in objects}, n_split)
        return self._made(batch, {**repeated.non_tensor_batch, **cut_objects}, self.meta_info)

    def padding(self, padding_size: int, padding_candidate: str = "") -> None:
        """Append ``padding_size`` copies of the first row or, by default, the last one; changes the receiver.

        Raises:
            DataError: if ``padding_candidate`` is neither "first" nor "last" nor empty, or there is no row to copy.
        """
        rows = len(self)
        self._take_over(self.rows_at(padding_index(rows, padding_size, padding_candidate), own_objects_from=rows))

    def make_iterator(
        self,
        mini_batch_size: int,
        epochs: int,
        seed: int | None = None,
        dataloader_kwargs: Mapping[str, bool] | None = None,
    ) -> Iterator[Self]:
        """Mini-batches of every epoch, the last of each maybe shorter.

        ``dataloader_kwargs`` may hold ``shuffle`` (a new order each epoch, from ``seed``) and ``drop_last``.
        """
        order = mini_batches(len(self), mini_batch_size, epochs, seed, dataloader_kwargs or {})
        return (self.rows_at(index) for index in order)
