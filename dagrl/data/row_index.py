"""Row indices in every form a caller may use, as one: an int64 tensor of positions, each inside the batch."""

from collections.abc import Iterator, Mapping, Sequence

import numpy as np
import torch
from jaxtyping import Int64
from torch import Tensor

from dagrl.data.keys import check_at_least, listed
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


def check_permutation(order: Int64[Tensor, " m"], rows: int) -> Int64[Tensor, " m"]:
    """The order itself.

    Raises:
        DataError: if it loses or doubles a row.
    """
    if not torch.equal(order.sort().values, torch.arange(rows)):
        raise DataError(f"reorder needs each of the {rows} rows once; `select_idxs` chooses rows")
    return order


def repeat_index(rows: int, times: int, interleave: bool) -> Int64[Tensor, " m"]:
    """Every position ``times`` times, side by side or one batch after the other."""
    check_at_least(0, repeat_times=times)
    every = torch.arange(rows)
    return every.repeat_interleave(times) if interleave else every.repeat(times)


def repeat_counts(times: Sequence[int] | np.ndarray | Tensor, rows: int) -> Int64[Tensor, " rows"]:
    """How often each row is repeated.

    Raises:
        DataError: unless there is one integer of at least 0 for each row.
    """
    counts = torch.as_tensor(times if len(times) else np.empty(0, np.int64)).cpu()
    if counts.shape != (rows,):
        raise DataError(f"repeat_times of shape {tuple(counts.shape)} does not fit a batch of {rows} rows")
    if counts.dtype == torch.bool or counts.dtype.is_floating_point or bool((counts < 0).any()):
        raise DataError("repeat_times must be integers of at least 0")
    return counts.long()


def chunk_sizes(rows: int, chunks: int, uneven: bool) -> list[int]:
    """The rows of each of ``chunks`` parts; the first rows % chunks have one more.

    Raises:
        DataError: if the rows do not divide and ``uneven`` is false.
    """
    check_at_least(1, chunks=chunks)
    size, longer = divmod(rows, chunks)
    if longer and not uneven:
        fix = "pass uneven=True, build it with auto_padding=True, or pad with `pad_dataproto_to_divisor`"
        raise DataError(f"{rows} rows do not divide into {chunks} equal chunks; {fix}")
    return [size + (part < longer) for part in range(chunks)]


def split_sizes(rows: int, size: int) -> list[int]:
    """Parts of ``size`` rows, the last maybe shorter; of no rows one empty part."""
    check_at_least(1, split_size=size)
    return [min(size, rows - start) for start in range(0, max(rows, 1), size)]


def mini_batches(
    rows: int, size: int, epochs: int, seed: int | None, options: Mapping[str, bool]
) -> Iterator[Int64[Tensor, " m"] | slice]:
    """The positions of each mini-batch of each epoch.

    ``options`` are ``shuffle``, which draws a new order for every epoch, and ``drop_last``.

    Raises:
        DataError: for another option, or a number that is too small; at once, not at the first mini-batch.
    """
    check_at_least(1, mini_batch_size=size)
    check_at_least(0, epochs=epochs)
    known = {"shuffle": False, "drop_last": False, **options}
    unknown = sorted(options.keys() - {"shuffle", "drop_last"})
    if unknown:
        raise DataError(f"dataloader_kwargs takes `shuffle` and `drop_last`, not {listed(unknown)}")
    end = rows - rows % size if known["drop_last"] else rows
    return _mini_batches(rows, size, end, epochs, _generator(seed) if known["shuffle"] else None)


def _generator(seed: int | None) -> torch.Generator:
    generator = torch.Generator()
    generator.seed() if seed is None else generator.manual_seed(seed)
    return generator


def _mini_batches(
    rows: int, size: int, end: int, epochs: int, shuffling: torch.Generator | None
) -> Iterator[Int64[Tensor, " m"] | slice]:
    for _ in range(epochs):
        order = None if shuffling is None else torch.randperm(rows, generator=shuffling)
        for start in range(0, end, size):
            mini_batch = slice(start, min(start + size, end))
            yield mini_batch if order is None else order[mini_batch]


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
