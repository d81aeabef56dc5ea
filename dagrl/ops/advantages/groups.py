"""Statistics of groups: the answers to one prompt, wherever in the batch they lie."""

from dataclasses import dataclass
from math import inf
from typing import NamedTuple

import torch
from jaxtyping import Bool, Float, Float64, Int64
from torch import Tensor

from dagrl.data.metrics import Mean
from dagrl.ops.masks import mean_metric, where_masked

#: The group id of rows that belong to none, such as those that only pad a batch.
NO_GROUP = -1


@dataclass(frozen=True)
class Groups:
    """Statistics of each group (G of them) over its scorable rewards, and the group of each row."""

    of_row: Int64[Tensor, " B"]
    scorable: Bool[Tensor, " B"]
    count: Float64[Tensor, " G"]
    mean: Float64[Tensor, " G"]
    std: Float64[Tensor, " G"]
    highest: Float64[Tensor, " G"]
    lowest: Float64[Tensor, " G"]

    @property
    def informative(self) -> Bool[Tensor, " B"]:
        """The scorable rows of groups whose rewards differ; in all others a reward says nothing."""
        return self.scorable & (self.highest != self.lowest)[self.of_row]

    def total(self, values: Float64[Tensor, " B"]) -> Float64[Tensor, " G"]:
        """The sum over each group's scorable rows."""
        zeros = torch.zeros_like(self.count)
        return zeros.index_add(0, self.of_row, where_masked(values, self.scorable))


def measure_groups(rewards: Float[Tensor, " B"], group_ids: Int64[Tensor, " B"]) -> Groups:
    """Count, mean, unbiased standard deviation, highest and lowest reward of each group.

    NaN rewards and rows of `NO_GROUP` are left out. A group of fewer than two has a standard deviation of 0.
    """
    ids, of_row = group_ids.unique(return_inverse=True)
    scorable = ~rewards.isnan() & (group_ids != NO_GROUP)
    zeros = torch.zeros(len(ids), dtype=torch.float64, device=rewards.device)
    exact = rewards.detach().double()

    def total(values: Float64[Tensor, " B"]) -> Float64[Tensor, " G"]:
        return zeros.index_add(0, of_row, where_masked(values, scorable))

    count = total(torch.ones_like(exact))
    mean = total(exact) / count.clamp(min=1)
    std = (total((exact - mean[of_row]).square()) / (count - 1).clamp(min=1)).sqrt()
    highest = (zeros - inf).scatter_reduce(0, of_row, where_masked(exact, scorable, -inf), "amax")
    lowest = (zeros + inf).scatter_reduce(0, of_row, where_masked(exact, scorable, inf), "amin")
    return Groups(of_row, scorable, count, mean, std, highest, lowest)


class GroupStatistics(NamedTuple):
    """What a batch's groups can teach; parts that never cut a group merge exactly.

    A group with one scorable reward is a singleton; one with two or more, all equal, is uniform.
    Both get advantage 0. ``std`` is the mean, over groups with two or more scorable rewards, of
    their unbiased standard deviation.
    """

    num_groups: int
    num_singletons: int
    num_uniform: int
    num_unscorable: int
    std: Mean


def group_statistics(rewards: Float[Tensor, " B"], group_ids: Int64[Tensor, " B"]) -> GroupStatistics:
    """Counts of groups, of the degenerate ones, of unscorable (NaN) rows, and the mean within-group std.

    Rows of `NO_GROUP` do not count.
    """
    grouped = group_ids != NO_GROUP
    groups = measure_groups(rewards[grouped], group_ids[grouped])
    comparable = groups.count >= 2
    return GroupStatistics(
        num_groups=len(groups.count),
        num_singletons=int((groups.count == 1).sum()),
        num_uniform=int((comparable & (groups.highest == groups.lowest)).sum()),
        num_unscorable=int((~groups.scorable).sum()),
        std=mean_metric(groups.std, comparable),
    )
