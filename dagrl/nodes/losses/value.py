"""The critic's loss."""

from jaxtyping import Bool, Float32
from torch import Tensor

from dagrl.data.metrics import Metrics
from dagrl.graph import loss
from dagrl.graph.checks import CallView
from dagrl.graph.contract import Refusal
from dagrl.ops.masks import mean_metric
from dagrl.ops.value_loss import explained_variance, value_clip_loss


def _sane_value_clip(call: CallView) -> list[Refusal]:
    eps = call.options["eps"]
    if eps is None or eps > 0:
        return []
    return [(f"`eps` is {eps}", "it must be above 0, in units of the return, or None for no clip")]


@loss(check=_sane_value_clip)
def value_clip(
    new_values: Float32[Tensor, "B T"],
    values: Float32[Tensor, "B T"],
    returns: Float32[Tensor, "B T"],
    response_mask: Bool[Tensor, "B T"],
    *,
    eps: float | None = 0.2,
) -> tuple[Float32[Tensor, "B T"], Metrics]:
    """The clipped value loss of PPO: max((v - R)^2, (clip(v, values - eps, values + eps) - R)^2) / 2.

    From openai/baselines, described in arXiv 2005.12729; PPO's paper has no clip here. ``values`` are the critic's
    before the update; ``eps`` is in units of the return (None: the plain squared error, halved).
    ``critic/clip_fraction`` is the share of tokens whose loss is the clipped one, which has no gradient;
    ``critic/explained_variance`` is 1 - Var(R - v) / Var(R) over all trained tokens, NaN where all returns are equal.
    """
    losses, clipped = value_clip_loss(new_values, values, returns, response_mask, eps=eps)
    metrics = {
        "critic/value_loss": mean_metric(losses, response_mask),
        "critic/clip_fraction": mean_metric(clipped, response_mask),
        "critic/values": mean_metric(new_values, response_mask),
        "critic/returns": mean_metric(returns, response_mask),
        "critic/explained_variance": explained_variance(new_values, returns, response_mask),
    }
    return losses, Metrics(metrics)
