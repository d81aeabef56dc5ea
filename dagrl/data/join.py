"""How edges meet at a node: rows aligned by their ids, widths padded to the widest.

Pure functions that the executor runs on every edge of every step; no loop over rows.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import TypeVar

import numpy as np
import torch
from jaxtyping import Int64
from torch import Tensor

from dagrl.errors import DataError

#: A tensor or an object column.
Values = TypeVar("Values", Tensor, np.ndarray)
#: How many ids a message lists.
_SHOWN = 5


@dataclass(frozen=True)
class Widths:
    """The prompt width P and the response width T of an edge."""

    P: int
    T: int

    @property
    def S(self) -> int:
        """The sequence width."""
        return self.P + self.T


def repad(tensor: Tensor, dims: tuple[str, ...], have: Widths, want: Widths, pad: float | int | bool) -> Tensor:
    """The tensor with P grown on the left, T on the right, and S at both ends by the growth of each.

    Args:
        dims: the legend's letter for each dim; other letters keep their size.
        have: the widths of ``tensor``.
        want: the widths to reach.
        pad: what fills the new places.

    Returns:
        ``tensor`` itself when nothing grows, else a new tensor.

    Raises:
        DataError: if a width would shrink or ``tensor`` is not of the widths that ``have`` says.
    """
    _check_widths(tensor, dims, have, want)
    left, right = want.P - have.P, want.T - have.T
    growth = {"P": (left, 0), "T": (0, right), "S": (left, right)}
    grown = [growth.get(dim, (0, 0)) for dim in dims]
    if not any(before or after for before, after in grown):
        return tensor
    sizes = [size + before + after for size, (before, after) in zip(tensor.shape, grown, strict=True)]
    padded = tensor.new_full(sizes, pad)
    old = tuple(slice(before, before + size) for size, (before, _) in zip(tensor.shape, grown, strict=True))
    padded[old] = tensor
    return padded


def _check_widths(tensor: Tensor, dims: tuple[str, ...], have: Widths, want: Widths) -> None:
    if want.P < have.P or want.T < have.T:
        raise DataError(f"padding never shrinks: from P={have.P} T={have.T} to P={want.P} T={want.T}")
    if tensor.ndim != len(dims):
        raise DataError(f"a tensor of shape {tuple(tensor.shape)} does not have the dims [{' '.join(dims)}]")
    widths = {"P": have.P, "T": have.T, "S": have.S}
    for dim, size in zip(dims, tensor.shape, strict=True):
        if dim in widths and widths[dim] != size:
            raise DataError(f"dim {dim} of [{' '.join(dims)}] is {size} wide, its edge says {widths[dim]}")


def select_rows(have_ids: Int64[Tensor, " n"], want_ids: Int64[Tensor, " m"]) -> Int64[Tensor, " m"] | None:
    """Where each wanted row is among the rows at hand; None when both are the same rows in the same order.

    Ids are unique; they are looked at for repeats only where a search is needed.

    Raises:
        DataError: naming up to five ids that are missing or repeat.
    """
    if torch.equal(have_ids, want_ids):
        return None
    ordered, order = _sorted_unique(have_ids, "at hand")
    place, found = _find(ordered, want_ids)
    if not bool(found.all()):
        missing = want_ids[~found]
        raise DataError(f"{missing.numel()} wanted rows are not among the rows at hand: {_ids(missing)}")
    index = order[place]
    uses = torch.bincount(index, minlength=have_ids.numel())
    if bool((uses > 1).any()):
        raise DataError(f"row ids repeat among the wanted rows: {_ids(have_ids[uses > 1])}")
    return index


def intersect_rows(parts: Sequence[Int64[Tensor, " n"]]) -> Int64[Tensor, " m"]:
    """The row ids that are in every part, in the order of the first.

    Raises:
        DataError: if there is no part, or naming up to five ids that repeat in one.
    """
    if not parts:
        raise DataError("rows of no edges cannot be joined")
    rows = first = parts[0]
    for number, part in enumerate(parts[1:], 1):
        if not torch.equal(first, part):
            _, found = _find(_sorted_unique(part, f"of part {number}")[0], rows)
            rows = rows[found]
    if rows is not first:
        _sorted_unique(rows, "of part 0")
    return rows


def take(values: Values, index: Int64[Tensor, " m"] | None) -> Values:
    """The rows of a tensor or object column at ``index``, in its order; all of them, as they are, for None."""
    if index is None:
        return values
    if isinstance(values, Tensor):
        return values[index.to(values.device)]
    return values[index.cpu().numpy()]


def _sorted_unique(ids: Tensor, whose: str) -> tuple[Tensor, Tensor]:
    """The ids in ascending order and where each was."""
    if bool((ids[1:] > ids[:-1]).all()):
        return ids, torch.arange(ids.numel(), device=ids.device)
    ordered, order = ids.sort()
    again = ordered[1:] == ordered[:-1]
    if bool(again.any()):
        raise DataError(f"row ids repeat among the rows {whose}: {_ids(ordered[1:][again].unique())}")
    return ordered, order


def _find(ordered: Tensor, ids: Tensor) -> tuple[Tensor, Tensor]:
    """For each id its place in ``ordered``, and whether it is there at all."""
    if not ordered.numel():
        return torch.zeros_like(ids), torch.zeros_like(ids, dtype=torch.bool)
    place = torch.searchsorted(ordered.contiguous(), ids.contiguous()).clamp_(max=ordered.numel() - 1)
    return place, ordered[place] == ids


def _ids(ids: Tensor) -> str:
    shown = ", ".join(str(value) for value in ids[:_SHOWN].tolist())
    return shown if ids.numel() <= _SHOWN else f"{shown}, ..."
