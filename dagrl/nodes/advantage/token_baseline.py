"""Advantages over a baseline of each token."""

from jaxtyping import Bool, Float32, Int64
from torch import Tensor

from dagrl.data.metrics import Metrics
from dagrl.graph import node
from dagrl.graph.checks import CallView
from dagrl.graph.contract import Refusal
from dagrl.nodes.advantage.refusals import group_metrics, needs_groups, needs_one_reward
from dagrl.ops.advantages import discounted_sum, otb_advantages, score_norms, token_level_rewards


def _sane(call: CallView) -> list[Refusal]:
    return needs_one_reward(call) + needs_groups(call)


@node(writes="advantages", split="group", check=_sane)
def otb_advantage(
    old_logprobs: Float32[Tensor, "B T"],
    group_ids: Int64[Tensor, " B"],
    response_mask: Bool[Tensor, "B T"],
    rewards: Float32[Tensor, " B"] | None = None,
    token_rewards: Float32[Tensor, "B T"] | None = None,
    sum_pi_squared: Float32[Tensor, "B T"] | None = None,
    rollout_weights: Float32[Tensor, "B T"] | None = None,
    *,
    allow_singletons: bool = False,
) -> tuple[Float32[Tensor, "B T"], Metrics]:
    """Reward-to-go less the optimal token baseline of the group (OTB, arXiv 2602.07078).

    The baseline of the t-th trained token weighs each answer by the squared score norm that it has gathered up to
    there: 1 - 2 pi + sum of pi squared over the vocabulary, from ``sum_pi_squared`` (`old_logprob_squares` writes it),
    or (1 - pi)^2 without it. Pass the ``rollout_weights`` of a `rollout_correction` too: a token's gradient is scaled
    by its weight, the norm by its square, and a rejected token has none. One of ``rewards`` and ``token_rewards`` (the
    whole reward) arrives. Where only one answer of a group has a t-th token,
    and where all agree, the advantage is 0; an unscorable (NaN) row gets 0 and leaves its group.
    """
    placed, scorable = token_level_rewards(response_mask, rewards, token_rewards)
    norms = score_norms(old_logprobs, sum_pi_squared, rollout_weights)
    returns = discounted_sum(placed, response_mask, 1.0)
    advantages = otb_advantages(returns, norms, group_ids, response_mask, scorable)
    total = placed.sum(1).masked_fill(~scorable, float("nan")) if rewards is None else rewards
    return advantages.float(), group_metrics(total, group_ids)
