"""A loss that reads a column beyond the usual ones: any column an edge brings can be a parameter."""

from jaxtyping import Bool, Float32
from torch import Tensor

from dagrl import Metrics, loss
from dagrl.ops.masks import mean_metric, where_masked


@loss()
def reward_weighted_loss(
    new_logprobs: Float32[Tensor, "B T"],
    rewards: Float32[Tensor, " B"],
    response_mask: Bool[Tensor, "B T"],
    *,
    baseline: float = 0.0,
) -> tuple[Float32[Tensor, "B T"], Metrics]:
    """-(reward - baseline) * log-prob: the policy imitates its own answers as far as they were good.

    A row with an unscorable (NaN) reward has a loss of 0. The reward's edge goes to the update:
    ``update_policy(actor, rollout, reward, loss=reward_weighted_loss(baseline=0.5))``.
    """
    weights = (rewards - baseline).nan_to_num(0.0)
    losses = -weights.unsqueeze(-1) * where_masked(new_logprobs, response_mask)
    return losses, Metrics({"actor/rw_loss": mean_metric(losses.detach(), response_mask)})
