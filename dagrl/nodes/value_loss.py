"""The loss of a critic's update, token by token; the engine aggregates it."""

from math import inf

import torch
from jaxtyping import Bool, Float32
from torch import Tensor

from dagrl.data.metrics import ExplainedVariance, Metrics
from dagrl.graph import loss
from dagrl.graph.checks import CallView
from dagrl.graph.contract import Refusal
from dagrl.ops.masks import mean_metric, where_masked


def _sane_range(call: CallView) -> list[Refusal]:
    eps = call.options["eps"]
    return [] if 0 < eps <= inf else [(f"`eps` is {eps}", "the clip range must be above 0; `inf` turns clipping off")]


@loss(check=_sane_range)
def value_clip(
    new_values: Float32[Tensor, "B T"],
    values: Float32[Tensor, "B T"],
    returns: Float32[Tensor, "B T"],
    response_mask: Bool[Tensor, "B T"],
    *,
    eps: float = 0.2,
) -> tuple[Float32[Tensor, "B T"], Metrics]:
    """The clipped value loss of PPO: 0.5 max((v - R)^2, (clip(v, v_old - eps, v_old + eps) - R)^2).

    ``v_old`` are the ``values`` that the advantages were made from. ``critic/value_clip_fraction`` is the share of
    tokens whose loss is the clipped one, which has no gradient.
    """
    new, old, target = (where_masked(column, response_mask) for column in (new_values, values, returns))
    bounded = torch.minimum(torch.maximum(new, old - eps), old + eps)
    free, held = (new - target).square(), (bounded - target).square()
    losses = 0.5 * torch.maximum(free, held)
    return losses, Metrics(
        {
            "critic/value_loss": mean_metric(losses.detach(), response_mask),
            "critic/value_clip_fraction": mean_metric(held > free, response_mask),
            "critic/explained_variance": ExplainedVariance.of(
                target[response_mask].double().tolist(), new.detach()[response_mask].double().tolist()
            ),
        }
    )
