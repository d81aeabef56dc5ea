"""Jagged (nested) columns: rows of different lengths as one tensor of values and the offsets where each row begins.

torch combines two jagged tensors only if they hold the very same offsets, so whatever makes several jagged columns
shares equal offsets among them (`SharedOffsets`).
"""

from collections.abc import Sequence
from dataclasses import dataclass, field
from itertools import accumulate, pairwise

import torch
from jaxtyping import Int64
from torch import Tensor

from dagrl.data.taking import taken
from dagrl.errors import DataError


@dataclass(frozen=True)
class Jagged:
    """The values of all rows side by side, without holes, and where each row begins and the last one ends.

    ``dim`` is the ragged dim of the column, so the rows lie side by side along dim ``dim - 1`` of ``values``.
    """

    values: Tensor
    offsets: Int64[Tensor, " rows+1"]
    dim: int

    @property
    def lengths(self) -> Int64[Tensor, " rows"]:
        """The length of each row."""
        return self.offsets.diff()


@dataclass
class SharedOffsets:
    """Offsets by content: jagged columns made with one of these can be combined if their lengths are equal."""

    known: dict[tuple[torch.device, bytes], Tensor] = field(default_factory=dict[tuple[torch.device, bytes], Tensor])

    def column(self, jagged: Jagged) -> Tensor:
        """The jagged tensor."""
        key = jagged.offsets.device, jagged.offsets.cpu().numpy().tobytes()
        offsets = self.known.setdefault(key, jagged.offsets)
        return torch.nested.nested_tensor_from_jagged(jagged.values, offsets, jagged_dim=jagged.dim)


def is_jagged(column: Tensor) -> bool:
    """True for a nested tensor of layout jagged."""
    return column.layout is torch.jagged


def jagged_parts(column: Tensor) -> Jagged:
    """What a jagged tensor is made of; its values are shared unless there are holes between its rows."""
    ragged = next(dim for dim, size in enumerate(column.shape) if isinstance(size, torch.SymInt))
    if column.lengths() is not None:  # pyright: ignore[reportAttributeAccessIssue] - jagged tensors have them
        column = column.contiguous()
    offsets: Tensor = column.offsets()  # pyright: ignore[reportAttributeAccessIssue]
    return Jagged(column.values(), offsets, ragged)


def jagged_rows(jagged: Jagged, index: Int64[Tensor, " m"]) -> Jagged:
    """The rows at the given positions, in that order, as new values."""
    index = index.to(jagged.offsets.device)
    lengths = jagged.lengths[index]
    offsets = _offsets_of(lengths)
    moved = (jagged.offsets[:-1][index] - offsets[:-1]).repeat_interleave(lengths)
    places = torch.arange(len(moved), device=moved.device) + moved
    return Jagged(taken(jagged.values, jagged.dim - 1, places), offsets, jagged.dim)


def jagged_cut(jagged: Jagged, sizes: Sequence[int]) -> list[Jagged]:
    """Parts of so many rows each, in order, whose values are views."""
    bounds = list(accumulate(sizes, initial=0))
    at = jagged.offsets[torch.tensor(bounds, device=jagged.offsets.device)].tolist()
    parts = zip(pairwise(bounds), pairwise(at), strict=True)
    return [
        Jagged(
            jagged.values.narrow(jagged.dim - 1, begin, end - begin),
            jagged.offsets[first : last + 1] - begin,
            jagged.dim,
        )
        for (first, last), (begin, end) in parts
    ]


def jagged_stack(parts: Sequence[Jagged]) -> Jagged:
    """All rows of the parts, in order."""
    lengths = torch.cat([part.lengths for part in parts])
    return Jagged(torch.cat([part.values for part in parts], parts[0].dim - 1), _offsets_of(lengths), parts[0].dim)


def jagged_width(jagged: Jagged) -> tuple[int | str, ...]:
    """The shape of a row, with ``*`` for its length."""
    sizes: list[int | str] = list(jagged.values.shape)
    sizes[jagged.dim - 1] = "*"
    return tuple(sizes)


def jagged_split_rows(name: str, jagged: Jagged, num_parts: int) -> Jagged:
    """Every row cut into ``num_parts`` rows of equal length; the values are shared.

    Raises:
        DataError: naming the column and a row whose length does not divide.
    """
    lengths = jagged.lengths
    odd = (lengths % num_parts).nonzero().flatten()
    if len(odd):
        row = int(odd[0])
        raise DataError(
            f"row {row} of column `{name}` has length {int(lengths[row])}, which does not divide by {num_parts}"
        )
    return Jagged(jagged.values, _offsets_of((lengths // num_parts).repeat_interleave(num_parts)), jagged.dim)


def _offsets_of(lengths: Tensor) -> Tensor:
    return torch.cat([lengths.new_zeros(1), lengths.cumsum(0)])
