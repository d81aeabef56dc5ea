"""The rows of all ranks on each of them: columns put together at the widest widths, in an order of their own."""

from __future__ import annotations

from dataclasses import dataclass

import torch
from jaxtyping import Bool, Int64
from torch import Tensor

from dagrl.data.columns import PAD_SIDES, ColumnType, pad_value
from dagrl.data.join import Widths, repad
from dagrl.engines.parallel import DataParallel
from dagrl.errors import NodeError


@dataclass(frozen=True)
class AllRows:
    """Where this rank's rows are among those of all ranks.

    Rows are told apart by their seeds, and come in the order of these: once each, so that what is computed over them
    depends neither on which rank has which nor on rows that only pad a share, which repeat the seed of another.
    """

    have: Widths
    want: Widths
    counts: tuple[int, ...]
    order: Int64[Tensor, " m"]
    own: Int64[Tensor, " B"]
    parallel: DataParallel

    @staticmethod
    def of(seeds: Int64[Tensor, " B"], mask: Bool[Tensor, "B T"], have: Widths, parallel: DataParallel) -> AllRows:
        """From this rank's rows, of which ``mask`` says what is trained; all ranks must ask."""
        widths = [widths.tolist() for widths in parallel.gather(torch.tensor([have.P, have.T]))]
        by_rank = parallel.gather(seeds.cpu())
        trained = torch.cat(parallel.gather(mask.any(1).long().cpu()))
        everyone = torch.cat(by_rank)
        distinct, number = everyone.unique(return_inverse=True)
        # Of equal seeds the row with a trained token is the original, so it goes first.
        by_number = (2 * number + (1 - trained)).argsort(stable=True)
        sizes = torch.bincount(number, minlength=len(distinct))
        start = sum(len(other) for other in by_rank[: parallel.rank])
        return AllRows(
            have=have,
            want=Widths(max(width[0] for width in widths), max(width[1] for width in widths)),
            counts=tuple(len(other) for other in by_rank),
            order=by_number[sizes.cumsum(0) - sizes],
            own=number[start : start + len(seeds)],
            parallel=parallel,
        )

    def gather(self, name: str, column: Tensor, kind: ColumnType) -> Tensor:
        """A column of this rank's rows, as that of all rows; all ranks must ask.

        Raises:
            NodeError: when ranks hold it with other sizes of a dim that nothing pads, such as K.
        """
        column = self._of_known_sizes(name, column, kind)
        wide = repad(column, kind.dims, self.have, self.want, pad_value(name, kind.dtype))
        room = wide.new_zeros((max(self.counts), *wide.shape[1:]))
        room[: len(wide)] = wide
        parts = zip(self.parallel.gather_alike(room), self.counts, strict=True)
        return torch.cat([part[:count] for part, count in parts])[self.order]

    def _of_known_sizes(self, name: str, column: Tensor, kind: ColumnType) -> Tensor:
        """The column; where this rank has no rows, which tell no size beside P and T, with the sizes of the others."""
        places = [place for place, dim in enumerate(kind.dims) if dim != "B" and dim not in PAD_SIDES]
        if not places:
            return column
        by_rank = self.parallel.gather(torch.tensor([column.shape[place] for place in places]))
        known = {tuple(sizes.tolist()) for sizes, count in zip(by_rank, self.counts, strict=True) if count}
        if len(known) > 1:
            raise NodeError(f"`{name}: {kind}` has other sizes on other ranks: {sorted(known)} at dims {places}")
        if len(column) or not known:
            return column
        found = dict(zip(places, known.pop(), strict=True))
        return column.new_zeros([found.get(place, size) for place, size in enumerate(column.shape)])

    def take_own(self, column: Tensor, dims: tuple[str, ...]) -> Tensor:
        """Of a column of all rows those of this rank, at its own widths."""
        grown = self.want.P - self.have.P
        kept = {"P": slice(grown, None), "T": slice(0, self.have.T), "S": slice(grown, grown + self.have.S)}
        rows = column[self.own.to(column.device)]
        return rows[(slice(None), *(kept.get(dim, slice(None)) for dim in dims[1:]))]
