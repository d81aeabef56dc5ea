"""Advantages that need the whole batch: they are gathered on one worker and shared out again."""

import torch
from jaxtyping import Bool, Float32, Int64
from torch import Tensor

from dagrl.data.metrics import Metrics
from dagrl.graph import node
from dagrl.graph.checks import CallView
from dagrl.graph.contract import Refusal
from dagrl.nodes.advantage.refusals import group_metrics, needs_groups, unscorable_metric
from dagrl.nodes.advantage.reinforce import sane_gamma
from dagrl.ops.advantages import (
    discounted_sum,
    gdpo_advantages,
    gpg_advantages,
    grpo_advantages,
    measure_groups,
    spread_to_tokens,
    token_level_rewards,
    whiten,
)


def _knows_unscorable_rows(call: CallView) -> list[Refusal]:
    if {"rewards", "token_rewards"} & call.columns():
        return []
    what = "neither `rewards` nor `token_rewards` arrives, by which it knows rows that are unscorable and stay 0"
    return [(what, "pass the rewards that the advantages come from, too")]


@node(writes="advantages", split="batch", check=_knows_unscorable_rows)
def whiten_advantages(
    advantages: Float32[Tensor, "B T"],
    response_mask: Bool[Tensor, "B T"],
    rewards: Float32[Tensor, " B"] | None = None,
    token_rewards: Float32[Tensor, "B T"] | None = None,
    *,
    normalize_by_std: bool = True,
) -> Float32[Tensor, "B T"]:
    """Advantages less their mean over all trained tokens of the batch, divided by their unbiased std + 1e-6.

    ``whiten_advantages(rollout, reward, gae_advantage(rollout, reward, values))`` is what verl and OpenRLHF do by
    default with GAE; openai/baselines does it over each mini-batch, which arXiv 2006.05990 measures.
    ``normalize_by_std=False`` subtracts the mean alone: a batch baseline for `reinforce_advantage`.
    Unscorable (NaN) rows stay 0 and count nowhere; one trained token, or equal advantages, give 0.
    """
    scorable = torch.ones(len(advantages), dtype=torch.bool, device=advantages.device)
    if rewards is not None:
        scorable &= ~rewards.isnan()
    if token_rewards is not None:
        scorable &= ~token_rewards.masked_fill(~response_mask, 0.0).sum(1).isnan()
    return whiten(advantages, response_mask & scorable.unsqueeze(1), normalize_by_std=normalize_by_std)


@node(writes="advantages", split="batch", check=sane_gamma)
def reinforce_pp_advantage(
    response_mask: Bool[Tensor, "B T"],
    rewards: Float32[Tensor, " B"] | None = None,
    token_rewards: Float32[Tensor, "B T"] | None = None,
    *,
    gamma: float = 1.0,
) -> tuple[Float32[Tensor, "B T"], Metrics]:
    """The reward-to-go whitened over all trained tokens of the batch (REINFORCE++, arXiv 2501.03262).

    One of ``rewards`` (each put on the last trained token of its row) and ``token_rewards`` (the whole reward, with
    the KL penalty that the paper puts there) arrives. n = 1 is fine. An unscorable (NaN) row gets 0 and counts
    nowhere; if all returns are equal, all are 0.
    """
    placed, scorable = token_level_rewards(response_mask, rewards, token_rewards)
    returns = discounted_sum(placed, response_mask, gamma)
    return whiten(returns, response_mask & scorable.unsqueeze(1)).float(), unscorable_metric(scorable)


@node(writes="advantages", split="batch", check=needs_groups)
def reinforce_pp_baseline_advantage(
    rewards: Float32[Tensor, " B"],
    group_ids: Int64[Tensor, " B"],
    response_mask: Bool[Tensor, "B T"],
    *,
    allow_singletons: bool = False,
) -> tuple[Float32[Tensor, "B T"], Metrics]:
    """Rewards less their group's mean, whitened over all trained tokens of the batch (REINFORCE++ with baseline).

    From arXiv 2501.03262. A group of equal rewards is part of the batch. A group of one and an unscorable (NaN) reward
    get 0 and count nowhere; verl whitens the plain reward of a group of one.
    """
    groups = measure_groups(rewards, group_ids)
    compared = groups.scorable & (groups.count >= 2)[groups.of_row]
    centred = grpo_advantages(rewards.double(), group_ids, normalize_by_std=False)
    whitened = whiten(spread_to_tokens(centred, response_mask), response_mask & compared.unsqueeze(1))
    return whitened.float(), group_metrics(rewards, group_ids)


@node(writes="advantages", split="batch", check=needs_groups)
def gpg_advantage(
    rewards: Float32[Tensor, " B"],
    group_ids: Int64[Tensor, " B"],
    response_mask: Bool[Tensor, "B T"],
    *,
    normalize_by_std: bool = False,
    allow_singletons: bool = False,
) -> tuple[Float32[Tensor, "B T"], Metrics]:
    """Group policy gradient (GPG, arXiv 2504.02546): alpha (reward - group mean), alpha = rows / rows with a gradient.

    Groups of equal rewards have no gradient, and alpha makes up for what they take from the mean over the batch. It
    counts rows with a trained token, as the loss does. ``normalize_by_std`` divides by the group's std + 1e-6. Groups
    of equal rewards, groups of one and unscorable (NaN) rewards get 0.
    """
    per_row = gpg_advantages(rewards, group_ids, response_mask.any(1), normalize_by_std=normalize_by_std)
    return spread_to_tokens(per_row, response_mask), group_metrics(rewards, group_ids)


@node(writes="advantages", split="batch", check=needs_groups)
def gdpo_advantage(
    reward_components: Float32[Tensor, "B K"],
    group_ids: Int64[Tensor, " B"],
    response_mask: Bool[Tensor, "B T"],
    *,
    weights: tuple[float, ...] | None = None,
    allow_singletons: bool = False,
) -> tuple[Float32[Tensor, "B T"], Metrics]:
    """Several rewards, each normalised in its group, their sum in the batch (GDPO, arXiv 2601.05242).

    ``gdpo_advantage(rollout, stack_rewards(form, stack_rewards(correct)), weights=(1.0, 0.5))``: one weight for each
    component, in the order in which they were stacked, 1 unless given. A row that any component cannot score (NaN) and
    a group of one get 0; the metrics of groups are those of the weighted sum.

    Raises:
        ValueError: if there are not as many weights as components.
    """
    count = reward_components.shape[1]
    if weights is not None and len(weights) != count:
        raise ValueError(f"`weights` has {len(weights)} numbers for {count} reward components: give one for each")
    weighing = torch.tensor(weights if weights is not None else [1.0] * count, device=reward_components.device)
    per_row = gdpo_advantages(reward_components, group_ids, weighing)
    return spread_to_tokens(per_row, response_mask), group_metrics(reward_components @ weighing, group_ids)
