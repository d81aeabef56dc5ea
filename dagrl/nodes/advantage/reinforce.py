"""Advantages of each row by itself: reward-to-go, and the lead over a greedy answer."""

from jaxtyping import Bool, Float32
from torch import Tensor

from dagrl.data.metrics import Metrics
from dagrl.graph import node
from dagrl.graph.checks import CallView
from dagrl.graph.contract import Refusal
from dagrl.nodes.advantage.refusals import needs_one_reward, share_refusals, unscorable_metric
from dagrl.ops.advantages import discounted_sum, spread_to_tokens, token_level_rewards


def sane_gamma(call: CallView) -> list[Refusal]:
    """One reward, and a discount between 0 and 1."""
    return needs_one_reward(call) + share_refusals(call, "gamma")


@node(writes="advantages", check=sane_gamma)
def reinforce_advantage(
    response_mask: Bool[Tensor, "B T"],
    rewards: Float32[Tensor, " B"] | None = None,
    token_rewards: Float32[Tensor, "B T"] | None = None,
    *,
    gamma: float = 1.0,
) -> tuple[Float32[Tensor, "B T"], Metrics]:
    """The discounted reward-to-go of each trained token, without a baseline (REINFORCE, Williams 1992).

    One of ``rewards`` (each put on the last trained token of its row) and ``token_rewards`` (the whole reward)
    arrives. Masked tokens neither add nor discount. A baseline over the batch is one more node,
    `whiten_advantages(..., normalize_by_std=False)`. An unscorable (NaN) row gets 0.
    """
    placed, scorable = token_level_rewards(response_mask, rewards, token_rewards)
    advantages = discounted_sum(placed, response_mask, gamma).float()
    return advantages, unscorable_metric(scorable)


@node(writes="advantages", check=needs_one_reward)
def remax_advantage(
    baseline_rewards: Float32[Tensor, " B"],
    response_mask: Bool[Tensor, "B T"],
    rewards: Float32[Tensor, " B"] | None = None,
    token_rewards: Float32[Tensor, "B T"] | None = None,
) -> tuple[Float32[Tensor, "B T"], Metrics]:
    """Reward-to-go less the reward of a greedy answer to the same prompt (ReMax, arXiv 2310.10505).

    The greedy answer is a second rollout, its reward renamed where it is passed:
    ``remax_advantage(rollout, verify(batch, rollout), verify(batch, greedy).rename(rewards="baseline_rewards"))``.
    One of ``rewards`` and ``token_rewards`` (the whole reward) arrives. A row of which either reward is unscorable
    (NaN) gets 0.
    """
    placed, scorable = token_level_rewards(response_mask, rewards, token_rewards)
    compared = scorable & ~baseline_rewards.isnan()
    baseline = spread_to_tokens(baseline_rewards.double(), response_mask)
    advantages = discounted_sum(placed, response_mask, 1.0) - baseline
    return advantages.masked_fill(~compared.unsqueeze(1), 0.0).float(), unscorable_metric(compared)
