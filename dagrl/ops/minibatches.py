"""Which rows of a batch make which mini-batch."""

import torch
from jaxtyping import Int64
from torch import Tensor


def mini_batches(seeds: Int64[Tensor, " B"], size: int) -> tuple[Int64[Tensor, " K"], ...]:
    """The rows of each mini-batch, as positions among ``seeds``; the last may be short.

    Membership comes from the rows' seeds alone, so it does not depend on their order. Rows of one seed count as one
    and stay together: those that only pad a batch repeat the seeds of others. ``size`` 0, or one that is not below
    the number of seeds, makes a single mini-batch of all rows in place.
    """
    distinct, number = seeds.unique(return_inverse=True)
    if size == 0 or size >= len(distinct):
        return (torch.arange(len(seeds)),)
    return seeds.argsort(stable=True).split((number // size).bincount().tolist())
