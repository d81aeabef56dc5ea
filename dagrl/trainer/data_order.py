"""Which rows of the data a step reads: the next batches of an order that the seed decides."""

from dataclasses import dataclass

import torch
from jaxtyping import Int64
from torch import Tensor

from dagrl.executor.layout import SourceRows
from dagrl.ops.random import hash_ids, key_of


@dataclass(frozen=True)
class ShuffledOrder:
    """Epochs of whole batches, each epoch in its own seeded order; the rest of an epoch's rows is dropped."""

    num_rows: int
    batch_size: int
    seed: int

    @property
    def steps_per_epoch(self) -> int:
        """Whole batches in the data."""
        return self.num_rows // self.batch_size

    def rows(self, batch: int) -> SourceRows:
        """Batch number ``batch`` (0-based); group ids number the prompts of the whole run."""
        epoch, place = divmod(batch, self.steps_per_epoch)
        start = place * self.batch_size
        positions = self._permutation(epoch)[start : start + self.batch_size]
        return SourceRows(positions, batch * self.batch_size + torch.arange(self.batch_size))

    def _permutation(self, epoch: int) -> Int64[Tensor, " M"]:
        return hash_ids(key_of(self.seed, "data", epoch), torch.arange(self.num_rows)).argsort()


@dataclass
class DataStream:
    """An order, and how many of its batches the run has drawn: one a step, or in a `refill` block one a round."""

    order: ShuffledOrder
    drawn: int = 0

    def draw(self) -> SourceRows:
        """The next batch."""
        rows = self.order.rows(self.drawn)
        self.drawn += 1
        return rows


def walk_in_order(num_rows: int, batch_size: int) -> list[SourceRows]:
    """Every row once, in order, in batches of at most ``batch_size``."""
    return [SourceRows(part, part) for part in torch.arange(num_rows).split(batch_size)]


#: What a source reads when its data has ended and another's has not.
NO_ROWS = SourceRows(torch.empty(0, dtype=torch.int64), torch.empty(0, dtype=torch.int64))
