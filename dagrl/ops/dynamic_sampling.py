"""Dynamic sampling: the groups whose answers differ in reward, the only ones that a group baseline learns from."""

from math import inf

import torch
from jaxtyping import Bool, Float32, Int64
from torch import Tensor

from dagrl.ops.masks import where_masked


def mixed_rows(rewards: Float32[Tensor, " B"], group_ids: Int64[Tensor, " B"]) -> Bool[Tensor, " B"]:
    """True for the rows of groups in which at least two scorable rewards differ (DAPO, arXiv 2503.14476, eq. 11).

    For rewards of 0 and 1 that is the paper's 0 < number of right answers < group size; otherwise it asks for a
    standard deviation above 0. Rows of a group may lie anywhere in the batch, and all of them get one answer.

    Degenerate cases: a NaN (unscorable) reward is passed over, so it neither keeps nor drops its group. A group with
    fewer than two scorable rewards is False.
    """
    ids, of_row = group_ids.unique(return_inverse=True)
    scorable = ~rewards.isnan()
    bounds = torch.full((len(ids),), inf, dtype=rewards.dtype, device=rewards.device)
    lowest = bounds.scatter_reduce(0, of_row, where_masked(rewards, scorable, inf), "amin")
    highest = (-bounds).scatter_reduce(0, of_row, where_masked(rewards, scorable, -inf), "amax")
    return (highest > lowest)[of_row]
