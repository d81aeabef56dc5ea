"""Group-relative advantages: a reward compared with the other answers to the same prompt."""

from dataclasses import dataclass
from math import inf
from typing import NamedTuple

import torch
from jaxtyping import Bool, Float, Float32, Float64, Int64
from torch import Tensor

from dagrl.data.metrics import Mean
from dagrl.ops.masks import mean_metric, where_masked

#: The group id of rows that belong to none, such as those that only pad a batch.
NO_GROUP = -1


def grpo_advantages(
    rewards: Float32[Tensor, " B"],
    group_ids: Int64[Tensor, " B"],
    *,
    normalize_by_std: bool = True,
    eps: float = 1e-6,
) -> Float32[Tensor, " B"]:
    """GRPO (arXiv 2402.03300): A_i = (r_i - mean(group)) / (std(group) + eps), one advantage for each row.

    The standard deviation is unbiased; statistics are float64. Rows of a group may lie anywhere in
    the batch. Without ``normalize_by_std`` the difference is not divided: Dr.GRPO (arXiv 2503.20783).

    Degenerate cases: a group whose rewards are all equal, or that has one row, gives exactly 0, and so does a row of
    `NO_GROUP`. A row whose reward is NaN (unscorable) gets 0 and the rest of its group is normalised without it.
    """
    groups = _measure_groups(rewards, group_ids)
    informative = groups.scorable & (groups.highest != groups.lowest)[groups.of_row]
    advantages = rewards.double() - groups.mean[groups.of_row]
    if normalize_by_std:
        advantages = advantages / (groups.std[groups.of_row] + eps)
    return where_masked(advantages, informative).to(rewards.dtype)


def rloo_advantages(rewards: Float32[Tensor, " B"], group_ids: Int64[Tensor, " B"]) -> Float32[Tensor, " B"]:
    """RLOO (arXiv 2402.14740): A_i = r_i - mean of the group's other rewards, one advantage for each row.

    That is (r_i - mean(group)) k / (k - 1) for a group of k. Rows of a group may lie anywhere in the batch.

    Degenerate cases: a group whose rewards are all equal, or that has one row, gives exactly 0, and so does a row of
    `NO_GROUP`. A row whose reward is NaN (unscorable) gets 0 and is nobody's baseline.
    """
    groups = _measure_groups(rewards, group_ids)
    informative = groups.scorable & (groups.highest != groups.lowest)[groups.of_row]
    stretch = groups.count / (groups.count - 1).clamp(min=1)
    advantages = (rewards.double() - groups.mean[groups.of_row]) * stretch[groups.of_row]
    return where_masked(advantages, informative).to(rewards.dtype)


def spread_to_tokens(per_row: Float[Tensor, " B"], response_mask: Bool[Tensor, "B T"]) -> Float[Tensor, "B T"]:
    """Each row's value at each of its unmasked tokens, 0 at masked ones."""
    return where_masked(per_row.unsqueeze(-1).expand(response_mask.shape), response_mask)


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


def group_statistics(rewards: Float32[Tensor, " B"], group_ids: Int64[Tensor, " B"]) -> GroupStatistics:
    """Counts of groups, of the degenerate ones, of unscorable (NaN) rows, and the mean within-group std.

    Rows of `NO_GROUP` do not count.
    """
    grouped = group_ids != NO_GROUP
    groups = _measure_groups(rewards[grouped], group_ids[grouped])
    comparable = groups.count >= 2
    return GroupStatistics(
        num_groups=len(groups.count),
        num_singletons=int((groups.count == 1).sum()),
        num_uniform=int((comparable & (groups.highest == groups.lowest)).sum()),
        num_unscorable=int((~groups.scorable).sum()),
        std=mean_metric(groups.std, comparable),
    )


@dataclass(frozen=True)
class _Groups:
    """Statistics of each group (G of them) over its scorable rewards, and the group of each row."""

    of_row: Int64[Tensor, " B"]
    scorable: Bool[Tensor, " B"]
    count: Float64[Tensor, " G"]
    mean: Float64[Tensor, " G"]
    std: Float64[Tensor, " G"]
    highest: Float64[Tensor, " G"]
    lowest: Float64[Tensor, " G"]


def _measure_groups(rewards: Float32[Tensor, " B"], group_ids: Int64[Tensor, " B"]) -> _Groups:
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
    return _Groups(of_row, scorable, count, mean, std, highest, lowest)
