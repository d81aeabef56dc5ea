"""Row indices in every form a caller may use, as one: an int64 tensor of positions, each inside the batch."""

from collections.abc import Iterator, Sequence

import numpy as np
import torch
from jaxtyping import Int64
from torch import Tensor

from dagrl.errors import DataError, DataTypeError, RowIndexError

#: Chooses several rows: a slice, positions, or one bool for each row.
RowsLike = slice | Sequence[int] | Sequence[bool] | np.ndarray | Tensor


def single_row(index: object) -> int | None:
    """The position if ``index`` means one row (an int, numpy or 0-dim tensor integer), else None."""
    if isinstance(index, Tensor | np.ndarray | np.generic) and index.ndim == 0:
        index = index.item()
    if isinstance(index, bool):
        raise DataTypeError("a single bool does not choose a row; pass one bool for each row")
    return index if isinstance(index, int) else None


def check_row(index: int, rows: int) -> int:
    """The position counted from the first row; negative ones count from the end."""
    if not -rows <= index < rows:
        raise RowIndexError(f"row {index} is outside a batch of {rows} rows")
    return index % rows


def row_index(index: RowsLike, rows: int) -> Int64[Tensor, " m"]:
    """The chosen positions, in order, on the CPU.

    Raises:
        DataTypeError: if ``index`` is neither ints nor bools.
        RowIndexError: if a position is outside the batch.
        DataError: if there is not one bool for each row, or ``index`` has more than one dim.
    """
    if isinstance(index, slice):
        return torch.from_numpy(np.arange(rows)[index].copy())
    chosen = _as_array(index)
    if chosen.ndim != 1:
        raise DataError(f"rows are chosen by a flat sequence, got one of shape {chosen.shape}")
    if chosen.dtype == bool:
        return _from_mask(chosen, rows)
    outside = (chosen < -rows) | (chosen >= rows)
    if outside.any():
        raise RowIndexError(f"row {chosen[outside][0]} is outside a batch of {rows} rows")
    chosen = chosen.astype(np.int64)
    return torch.from_numpy(np.where(chosen < 0, chosen + rows, chosen))


def mini_batches(
    rows: int, size: int, epochs: int, seed: int | None, *, shuffle: bool, drop_last: bool
) -> Iterator[Int64[Tensor, " m"]]:
    """The positions of each mini-batch of each epoch; ``shuffle`` draws a new order for every epoch."""
    generator = None if seed is None else torch.Generator().manual_seed(seed)
    end = rows - rows % size if drop_last else rows
    for _ in range(epochs):
        order = torch.randperm(rows, generator=generator) if shuffle else torch.arange(rows)
        for start in range(0, end, size):
            yield order[start : min(start + size, end)]


def _as_array(index: object) -> np.ndarray:
    if isinstance(index, Tensor):
        chosen = index.detach().cpu().numpy()
    elif isinstance(index, np.ndarray):
        chosen = index
    elif isinstance(index, Sequence) and not isinstance(index, str | bytes):
        chosen = _from_sequence(index)
    else:
        raise DataTypeError(f"rows are chosen by ints, bools or a slice, not by a {type(index).__name__}")
    if chosen.dtype.kind not in "iub":
        raise DataTypeError(f"rows are chosen by ints or bools, not by values of dtype {chosen.dtype}")
    return chosen


def _from_sequence(index: Sequence[int] | Sequence[bool]) -> np.ndarray:
    chosen = np.asarray(index) if len(index) else np.empty(0, dtype=np.int64)
    if chosen.dtype != bool and any(isinstance(value, bool | np.bool) for value in index):
        raise DataTypeError("rows are chosen by ints or by bools, not by both")
    return chosen


def _from_mask(mask: np.ndarray, rows: int) -> Int64[Tensor, " m"]:
    if len(mask) != rows:
        raise DataError(f"a mask of {len(mask)} bools does not fit a batch of {rows} rows")
    return torch.from_numpy(np.flatnonzero(mask))
