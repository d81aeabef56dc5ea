"""Advantages within a group: each reward against the other answers to its prompt."""

from jaxtyping import Bool, Float32, Int64
from torch import Tensor

from dagrl.data.metrics import Metrics
from dagrl.graph import node
from dagrl.graph.checks import CallView
from dagrl.graph.contract import Refusal
from dagrl.nodes.advantage.refusals import group_metrics, needs_groups
from dagrl.nodes.refusals import below
from dagrl.ops.advantages import (
    grpo_advantages,
    grpo_passk_advantages,
    maxrl_advantages,
    opo_advantages,
    pass_at_k_advantages,
    rloo_advantages,
    spread_to_tokens,
)


@node(writes="advantages", split="group", check=needs_groups)
def grpo_advantage(
    rewards: Float32[Tensor, " B"],
    group_ids: Int64[Tensor, " B"],
    response_mask: Bool[Tensor, "B T"],
    *,
    normalize_by_std: bool = True,
    allow_singletons: bool = False,
) -> tuple[Float32[Tensor, "B T"], Metrics]:
    """Group-relative advantages (GRPO, arXiv 2402.03300): (reward - group mean) / (group std + 1e-6).

    ``normalize_by_std=False`` leaves the division out (Dr. GRPO, arXiv 2503.20783). The standard deviation is
    unbiased. A group of one and a group of equal rewards get 0; an unscorable (NaN) reward gets 0 and leaves
    its group.
    """
    per_row = grpo_advantages(rewards, group_ids, normalize_by_std=normalize_by_std)
    return spread_to_tokens(per_row, response_mask), group_metrics(rewards, group_ids)


def _no_std(call: CallView) -> list[Refusal]:
    refusals = needs_groups(call)
    if call.options["normalize_by_std"]:
        what = "`normalize_by_std=True` divides a leave-one-out advantage by a spread that the row itself is part of"
        refusals.append((what, "drop it, or use `grpo_advantage`"))
    return refusals


@node(writes="advantages", split="group", check=_no_std)
def rloo_advantage(
    rewards: Float32[Tensor, " B"],
    group_ids: Int64[Tensor, " B"],
    response_mask: Bool[Tensor, "B T"],
    *,
    normalize_by_std: bool = False,
    allow_singletons: bool = False,
) -> tuple[Float32[Tensor, "B T"], Metrics]:
    """Leave-one-out advantages (RLOO, arXiv 2402.14740): reward - mean reward of the group's other rows.

    There is no normalisation by the standard deviation: ``normalize_by_std=True`` is refused. A group of one and a
    group of equal rewards get 0; an unscorable (NaN) reward gets 0 and leaves its group.
    """
    if normalize_by_std:
        raise ValueError("leave-one-out advantages are not normalised by the standard deviation")
    per_row = rloo_advantages(rewards, group_ids)
    return spread_to_tokens(per_row, response_mask), group_metrics(rewards, group_ids)


@node(writes="advantages", split="group", check=needs_groups, examples={"rewards": [0.0, 1.0, 0.5, 0.0, 0.0]})
def maxrl_advantage(
    rewards: Float32[Tensor, " B"],
    group_ids: Int64[Tensor, " B"],
    response_mask: Bool[Tensor, "B T"],
    *,
    allow_singletons: bool = False,
) -> tuple[Float32[Tensor, "B T"], Metrics]:
    """Maximum-likelihood advantages (MaxRL, arXiv 2602.02710): (reward - group mean) / group mean.

    Rewards of 0 and 1 are meant; one below 0 is an error, since the mean divides. A group without success gets 0, as
    do a group of one and a group of equal rewards; an unscorable (NaN) reward gets 0 and leaves its group.
    """
    per_row = maxrl_advantages(rewards, group_ids)
    return spread_to_tokens(per_row, response_mask), group_metrics(rewards, group_ids)


@node(writes="advantages", split="group", check=needs_groups)
def opo_advantage(
    rewards: Float32[Tensor, " B"],
    group_ids: Int64[Tensor, " B"],
    response_mask: Bool[Tensor, "B T"],
    *,
    allow_singletons: bool = False,
) -> tuple[Float32[Tensor, "B T"], Metrics]:
    """Advantages over the length-weighted baseline (OPO, arXiv 2505.23585): reward - sum(l r) / sum(l) of the group.

    l is the number of trained tokens, so tool output does not count. A group of one and a group of equal rewards get
    0; an unscorable (NaN) reward gets 0 and leaves its group. OPO is meant on-policy: one epoch, one mini-batch.
    """
    per_row = opo_advantages(rewards, group_ids, response_mask.sum(1))
    return spread_to_tokens(per_row, response_mask), group_metrics(rewards, group_ids)


def _sane_k(call: CallView) -> list[Refusal]:
    k, too_small = call.options["k"], below(call, "k", 1)
    if too_small:
        return too_small
    return needs_groups(call) + [
        (f"`{source}` has n={n}, so a group has one subset of k={k} at most and every advantage would be 0", "raise n")
        for source, n in call.upstream_option("n")
        if 1 < n <= k
    ]


@node(writes="advantages", split="group", check=_sane_k)
def pass_at_k_advantage(
    rewards: Float32[Tensor, " B"],
    group_ids: Int64[Tensor, " B"],
    response_mask: Bool[Tensor, "B T"],
    *,
    k: int,
    allow_singletons: bool = False,
) -> tuple[Float32[Tensor, "B T"], Metrics]:
    """Advantages for the best of ``k`` answers (pass@k training, arXiv 2508.10751, in closed form over all subsets).

    For rewards of 0 and 1 it is the paper's formula; for others the reward of k answers is the highest among them. A
    group of ``k`` or fewer scorable rows and a group of equal rewards get 0; an unscorable (NaN) reward gets 0 and
    leaves its group.
    """
    per_row = pass_at_k_advantages(rewards, group_ids, k=k)
    return spread_to_tokens(per_row, response_mask), group_metrics(rewards, group_ids)


@node(writes="advantages", split="group", check=needs_groups)
def grpo_passk_advantage(
    rewards: Float32[Tensor, " B"],
    group_ids: Int64[Tensor, " B"],
    response_mask: Bool[Tensor, "B T"],
    *,
    normalize_by_std: bool = True,
    allow_singletons: bool = False,
) -> tuple[Float32[Tensor, "B T"], Metrics]:
    """Pass@k by the best answer of a group alone (arXiv 2503.19595): (best - second best) / (group std + 1e-6).

    It is verl's ``grpo_passk``; all other answers get 0. ``normalize_by_std=False`` leaves the division out. A group
    with two best answers, a group of one and a group of equal rewards get 0; an unscorable (NaN) reward gets 0 and
    leaves its group. `pass_at_k_advantage` teaches all answers, for a k of its own.
    """
    per_row = grpo_passk_advantages(rewards, group_ids, normalize_by_std=normalize_by_std)
    return spread_to_tokens(per_row, response_mask), group_metrics(rewards, group_ids)
