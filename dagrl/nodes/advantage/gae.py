"""Advantages against a critic."""

from typing import NamedTuple

import torch
from jaxtyping import Bool, Float32
from torch import Tensor

from dagrl.data.metrics import Metrics
from dagrl.graph import node
from dagrl.graph.checks import CallView
from dagrl.graph.contract import Refusal
from dagrl.nodes.advantage.refusals import needs_one_reward, share_refusals, unscorable_metric
from dagrl.ops.advantages import gae_advantages, token_level_rewards
from dagrl.ops.masks import where_masked


class AdvantagesAndReturns(NamedTuple):
    """What the policy and what the critic learn from."""

    advantages: Float32[Tensor, "B T"]
    returns: Float32[Tensor, "B T"]


def _sane_discounts(call: CallView) -> list[Refusal]:
    return needs_one_reward(call) + share_refusals(call, "gamma", "lam")


@node(check=_sane_discounts)
def gae_advantage(
    values: Float32[Tensor, "B T"],
    response_mask: Bool[Tensor, "B T"],
    rewards: Float32[Tensor, " B"] | None = None,
    token_rewards: Float32[Tensor, "B T"] | None = None,
    *,
    gamma: float = 1.0,
    lam: float = 1.0,
) -> tuple[AdvantagesAndReturns, Metrics]:
    """Generalised advantage estimation (GAE, arXiv 1506.02438) against the critic's ``values``; returns for its update.

    One of ``rewards`` (each put on the last trained token of its row) and ``token_rewards`` (the whole reward, e.g.
    with a KL penalty) arrives. Masked tokens, such as tool output between turns, pass the next value and advantage
    through; rewards there are dropped. gamma and lam discount for each trained token. verl and OpenRLHF whiten the
    result by default: here `whiten_advantages` does, as a node of its own, since that needs the whole batch.

    An unscorable (NaN) row has advantage 0, and its returns are its values, so that the critic has nothing to learn.
    """
    placed, scorable = token_level_rewards(response_mask, rewards, token_rewards)
    counted = response_mask & scorable.unsqueeze(1)
    advantages = gae_advantages(placed, values, counted, gamma=gamma, lam=lam)
    returns = torch.where(response_mask, advantages + where_masked(values, response_mask), 0.0)
    return AdvantagesAndReturns(advantages, returns), unscorable_metric(scorable)
