"""Which rows of the data a step reads: a function of the seed and the step alone."""

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

    def rows(self, step: int) -> SourceRows:
        """What step ``step`` (0-based) reads; group ids number the prompts of the whole run."""
        epoch, place = divmod(step, self.steps_per_epoch)
        start = place * self.batch_size
        positions = self._permutation(epoch)[start : start + self.batch_size]
        return SourceRows(positions, step * self.batch_size + torch.arange(self.batch_size))

    def _permutation(self, epoch: int) -> Int64[Tensor, " M"]:
        return hash_ids(key_of(self.seed, "data", epoch), torch.arange(self.num_rows)).argsort()


def walk_in_order(num_rows: int, batch_size: int) -> list[SourceRows]:
    """Every row once, in order, in batches of at most ``batch_size``."""
    return [SourceRows(part, part) for part in torch.arange(num_rows).split(batch_size)]


#: What a source reads when its data has ended and another's has not.
NO_ROWS = SourceRows(torch.empty(0, dtype=torch.int64), torch.empty(0, dtype=torch.int64))
