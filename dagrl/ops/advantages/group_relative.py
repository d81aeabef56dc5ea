"""Group-relative advantages: a reward compared with the other answers to the same prompt, one number for each row.

In all of them a group whose rewards are all equal, or that has one row, gives exactly 0, and so does a row of
`NO_GROUP`. A row whose reward is NaN (unscorable) gets 0, and its group is measured without it. A row without a
trained token still counts in its group. Rows of a group may lie anywhere in the batch.
"""

from jaxtyping import Bool, Float, Int64
from torch import Tensor

from dagrl.ops.advantages.groups import NO_GROUP, Groups, measure_groups
from dagrl.ops.masks import where_masked


def grpo_advantages(
    rewards: Float[Tensor, " B"],
    group_ids: Int64[Tensor, " B"],
    *,
    normalize_by_std: bool = True,
    eps: float = 1e-6,
) -> Float[Tensor, " B"]:
    """GRPO (arXiv 2402.03300): A_i = (r_i - mean(group)) / (std(group) + eps), one advantage for each row.

    The standard deviation is unbiased; statistics are float64. Without ``normalize_by_std`` the difference is not
    divided: Dr.GRPO (arXiv 2503.20783).

    Degenerate cases: a group whose rewards are all equal, or that has one row, gives exactly 0, and so does a row of
    `NO_GROUP`. A row whose reward is NaN (unscorable) gets 0 and the rest of its group is normalised without it.
    """
    groups = measure_groups(rewards, group_ids)
    advantages = _centred(rewards, groups)
    if normalize_by_std:
        advantages = advantages / (groups.std[groups.of_row] + eps)
    return where_masked(advantages, groups.informative).to(rewards.dtype)


def rloo_advantages(rewards: Float[Tensor, " B"], group_ids: Int64[Tensor, " B"]) -> Float[Tensor, " B"]:
    """RLOO (arXiv 2402.14740): A_i = r_i - mean of the group's other rewards, one advantage for each row.

    That is (r_i - mean(group)) k / (k - 1) for a group of k. Degenerate cases are those of `grpo_advantages`.
    """
    groups = measure_groups(rewards, group_ids)
    stretch = groups.count / (groups.count - 1).clamp(min=1)
    advantages = _centred(rewards, groups) * stretch[groups.of_row]
    return where_masked(advantages, groups.informative).to(rewards.dtype)


def maxrl_advantages(rewards: Float[Tensor, " B"], group_ids: Int64[Tensor, " B"]) -> Float[Tensor, " B"]:
    """MaxRL (arXiv 2602.02710): A_i = (r_i - mean(group)) / mean(group), one advantage for each row.

    For rewards of 0 and 1 its expectation is the gradient of log(pass rate), truncated at the group's size, so a group
    with one success in k teaches as much as one with many. An advantage lies between -1 and k - 1, so no eps is added.

    Degenerate cases are those of `grpo_advantages`; a group without any success is one whose rewards are equal.

    Raises:
        ValueError: if a reward is negative: the mean is a likelihood and divides.
    """
    groups = measure_groups(rewards, group_ids)
    scored = where_masked(rewards.detach(), groups.scorable)
    if bool((scored < 0).any()):
        raise ValueError(
            f"MaxRL divides by a group's mean reward, so none may be negative, but one is {scored.min().item():g}: "
            "shift the rewards, or use GRPO"
        )
    advantages = _centred(rewards, groups) / groups.mean[groups.of_row]
    return where_masked(advantages, groups.informative).to(rewards.dtype)


def opo_advantages(
    rewards: Float[Tensor, " B"], group_ids: Int64[Tensor, " B"], lengths: Int64[Tensor, " B"]
) -> Float[Tensor, " B"]:
    """OPO (arXiv 2505.23585): A_i = r_i - sum(l_j r_j) / sum(l_j) over the group, l the number of trained tokens.

    The baseline of least variance when a row's squared gradient norm is proportional to its length. A row without a
    trained token has weight 0. Other degenerate cases are those of `grpo_advantages`.
    """
    groups = measure_groups(rewards, group_ids)
    weights = lengths.double()
    baseline = groups.total(weights * rewards.detach().double()) / groups.total(weights).clamp(min=1)
    advantages = rewards.detach().double() - baseline[groups.of_row]
    return where_masked(advantages, groups.informative).to(rewards.dtype)


def gpg_advantages(
    rewards: Float[Tensor, " B"],
    group_ids: Int64[Tensor, " B"],
    trained: Bool[Tensor, " B"],
    *,
    normalize_by_std: bool = False,
    eps: float = 1e-6,
) -> Float[Tensor, " B"]:
    """GPG (arXiv 2504.02546): A_i = alpha (r_i - mean(group)) / F, alpha = rows / rows whose advantage is not void.

    F is 1, or the group's unbiased standard deviation plus eps with ``normalize_by_std``. Rows of uniform groups, of
    groups of one and unscorable rows have no gradient, yet the loss divides by all rows that have a trained token;
    alpha makes up for them, so it counts ``trained`` rows alone, above and below. verl counts rewards other than 0
    below instead, which also takes right answers of mixed groups for the only valid ones, and empty rows above.

    Degenerate cases: a row that is not trained gets 0, but still counts in its group; if no row has a gradient all are
    0; others are those of `grpo_advantages`.
    """
    groups = measure_groups(rewards, group_ids)
    plain = grpo_advantages(rewards.double(), group_ids, normalize_by_std=normalize_by_std, eps=eps)
    counted, valid = (group_ids != NO_GROUP) & trained, groups.informative & trained
    alpha = counted.sum() / valid.sum().clamp(min=1)
    return where_masked(alpha * plain, trained).to(rewards.dtype)


def _centred(rewards: Float[Tensor, " B"], groups: Groups) -> Float[Tensor, " B"]:
    return rewards.detach().double() - groups.mean[groups.of_row]
