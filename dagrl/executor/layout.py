"""Which rows lie on which rank of a process set, and what must move for an op to find its rows. Pure functions."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

import torch
from jaxtyping import Int64
from torch import Tensor

from dagrl.errors import DagrlError
from dagrl.ops.balance import balanced_partition

#: How much more than its share of the tokens a rank may hold before an update moves rows.
TOLERATED_IMBALANCE = 0.05


@dataclass(frozen=True)
class Layout:
    """The row ids on each rank of a process set."""

    where: str
    rows: tuple[Int64[Tensor, " B"], ...]

    @property
    def num_rows(self) -> int:
        """All rows."""
        return sum(len(ids) for ids in self.rows)


@dataclass(frozen=True)
class SourceRows:
    """What a ``prompts`` call reads in one step: positions in the data, and their numbers in the data stream."""

    positions: Int64[Tensor, " M"]
    group_ids: Int64[Tensor, " M"]

    def split(self, size: int) -> tuple[SourceRows, ...]:
        """Consecutive prompts for each rank, the first ranks with one more where they do not divide."""
        parts = zip(self.positions.tensor_split(size), self.group_ids.tensor_split(size), strict=True)
        return tuple(SourceRows(*part) for part in parts)


#: Asked for the next rows of a source, by the name of its call.
Draw = Callable[[str], SourceRows]


def no_more_rows(source: str) -> SourceRows:
    """For a plan without loops: nobody draws.

    Raises:
        DagrlError: always.
    """
    raise DagrlError(f"`{source}` stands in a loop, and nothing says which rows its rounds read: pass `draw`")


def joined(first: Layout, second: Layout) -> Layout:
    """The rows of both, which lie on the same ranks: those of one round and of those before it."""
    return Layout(first.where, tuple(torch.cat(rows) for rows in zip(first.rows, second.rows, strict=True)))


def narrowed(layout: Layout, kept: Sequence[Int64[Tensor, " K"]]) -> Layout:
    """The rows that are among all of ``kept``, where they are."""
    rows = list(layout.rows)
    for ids in kept:
        rows = [here[torch.isin(here, ids)] for here in rows]
    return Layout(layout.where, tuple(rows))


def on_first_rank(layout: Layout) -> Layout:
    """All rows on rank 0, in rank order."""
    nothing = layout.rows[0][:0]
    return Layout(layout.where, (torch.cat(layout.rows), *[nothing] * (len(layout.rows) - 1)))


def balanced(layout: Layout, weights: Int64[Tensor, " N"], batches: Sequence[Int64[Tensor, " K"]]) -> Layout:
    """A layout in which every rank has its share of the weight of each batch of rows.

    ``weights`` and the indices of ``batches`` go by the rows in rank order. Where the layout is balanced well
    enough already it stays.
    """
    size = len(layout.rows)
    holder = torch.repeat_interleave(torch.arange(size), torch.tensor([len(ids) for ids in layout.rows]))
    if all(_is_balanced(weights[batch], holder[batch], size) for batch in batches):
        return layout
    ids = torch.cat(layout.rows)
    parts: list[list[Tensor]] = [[] for _ in range(size)]
    for batch in batches:
        for rank, share in enumerate(balanced_partition(weights[batch], size, equal_size=True)):
            parts[rank].append(ids[batch[torch.tensor(share, dtype=torch.int64)]])
    return Layout(layout.where, tuple(torch.cat(part).sort().values for part in parts))


def _is_balanced(weights: Tensor, holder: Tensor, size: int) -> bool:
    loads = torch.zeros(size, dtype=weights.dtype).index_add_(0, holder, weights)
    return float(loads.max()) <= (1 + TOLERATED_IMBALANCE) * float(weights.sum()) / size


def moves(have: Layout, want: Layout) -> list[list[Int64[Tensor, " K"] | None]] | None:
    """For each rank that holds rows, what it sends to each rank that wants them; None when all rows are in place.

    A row that is in place is not sent.
    """
    same = have.where == want.where
    if same and all(_covers(h, w) for h, w in zip(have.rows, want.rows, strict=True)):
        return None
    sent: list[list[Tensor | None]] = []
    for source, here in enumerate(have.rows):
        row: list[Tensor | None] = []
        for target, wanted in enumerate(want.rows):
            ids = wanted[:0] if same and source == target else wanted[torch.isin(wanted, here)]
            row.append(ids if len(ids) else None)
        sent.append(row)
    return sent


def _covers(have: Tensor, want: Tensor) -> bool:
    return have is want or torch.equal(have, want) or bool(torch.isin(want, have).all())
