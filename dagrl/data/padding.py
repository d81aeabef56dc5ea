"""Rows added so that a number divides a batch, and taken away again."""

from typing import TYPE_CHECKING, TypeVar

import torch
from jaxtyping import Int64
from torch import Tensor

from dagrl.data.keys import check_at_least
from dagrl.errors import DataError

if TYPE_CHECKING:
    from dagrl.data.batch_rows import RowMethods

#: The meta_info key of a batch made with ``auto_padding``; it travels with all that is made of the batch.
AUTO_PADDING = "_auto_padding"

Batch = TypeVar("Batch", bound="RowMethods")


def pad_dataproto_to_divisor(data: Batch, size_divisor: int) -> tuple[Batch, int]:
    """The batch with rows repeated from the first on until ``size_divisor`` divides it, and how many were added.

    An empty batch stays empty. The added rows share no objects with the others.
    """
    check_at_least(1, size_divisor=size_divisor)
    rows = len(data)
    added = -rows % size_divisor
    index = torch.arange(rows + added) % rows if added else slice(None)
    return data.rows_at(index, own_objects_from=rows), added


def unpad_dataproto(data: Batch, pad_size: int) -> Batch:
    """The batch without its last ``pad_size`` rows."""
    if not 0 <= pad_size <= len(data):
        raise DataError(f"cannot remove {pad_size} padding rows from a batch of {len(data)} rows")
    return data.slice(0, len(data) - pad_size)


def padding_index(rows: int, size: int, candidate: str) -> Int64[Tensor, " m"]:
    """All rows and ``size`` times the first or the last of them.

    Raises:
        DataError: for another candidate, or where there is no row.
    """
    check_at_least(0, padding_size=size)
    if candidate not in {"first", "last", ""}:
        raise DataError(f'padding_candidate is {candidate!r}, it must be "first" or "last"')
    if size and not rows:
        raise DataError(f"a batch without rows cannot be padded by {size}: there is no row to repeat")
    return torch.cat([torch.arange(rows), torch.full((size,), 0 if candidate == "first" else rows - 1)])
