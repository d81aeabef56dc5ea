"""Losses of the score function: REINFORCE, CISPO and TOPR."""

from math import inf

from jaxtyping import Bool, Float32
from torch import Tensor

from dagrl.data.metrics import Metrics
from dagrl.graph import loss
from dagrl.graph.checks import CallView
from dagrl.graph.contract import Refusal
from dagrl.nodes.losses.shared import policy_metrics, weighted
from dagrl.ops.masks import mean_metric
from dagrl.ops.score_weights import cispo_loss, reinforce_loss, topr_loss


@loss()
def reinforce(
    new_logprobs: Float32[Tensor, "B T"],
    advantages: Float32[Tensor, "B T"],
    response_mask: Bool[Tensor, "B T"],
    rollout_weights: Float32[Tensor, "B T"] | None = None,
) -> tuple[Float32[Tensor, "B T"], Metrics]:
    """REINFORCE (Williams 1992), the loss of GPG too (arXiv 2504.02546): -A times the log-prob; it needs no ratio.

    It holds for one update on rows that the policy has just written; for more take a loss with a ratio.
    """
    losses = weighted(reinforce_loss(new_logprobs, advantages, response_mask), rollout_weights, response_mask)
    return losses, Metrics({"actor/pg_loss": mean_metric(losses, response_mask)})


def _sane_weight_clip(call: CallView) -> list[Refusal]:
    refusals: list[Refusal] = []
    eps, eps_high = call.options["eps"], call.options["eps_high"]
    if eps is not None and not 0 < eps <= 1:
        refusals.append((f"`eps` is {eps}", "it must lie above 0, at most 1, or be None for no lower bound"))
    if not 0 < eps_high < inf:
        refusals.append((f"`eps_high` is {eps_high}", "it must be above 0: weights are clipped at 1 + eps_high"))
    return refusals


@loss(check=_sane_weight_clip)
def cispo(
    new_logprobs: Float32[Tensor, "B T"],
    old_logprobs: Float32[Tensor, "B T"],
    advantages: Float32[Tensor, "B T"],
    response_mask: Bool[Tensor, "B T"],
    rollout_weights: Float32[Tensor, "B T"] | None = None,
    *,
    eps: float | None = None,
    eps_high: float = 4.0,
) -> tuple[Float32[Tensor, "B T"], Metrics]:
    """CISPO (arXiv 2506.13585): -sg(clip(r, 1 - eps, 1 + eps_high)) A times the log-prob: clipped tokens still learn.

    ``eps`` None is no lower bound, as in the paper. ``actor/clip_fraction`` counts tokens whose weight was clipped.
    """
    losses, clipped = cispo_loss(new_logprobs, old_logprobs, advantages, response_mask, eps_low=eps, eps_high=eps_high)
    losses = weighted(losses, rollout_weights, response_mask)
    return losses, policy_metrics(losses, new_logprobs, old_logprobs, response_mask, clipped)


@loss()
def topr(
    new_logprobs: Float32[Tensor, "B T"],
    old_logprobs: Float32[Tensor, "B T"],
    advantages: Float32[Tensor, "B T"],
    response_mask: Bool[Tensor, "B T"],
    rollout_weights: Float32[Tensor, "B T"] | None = None,
    *,
    length_normalized: bool = False,
) -> tuple[Float32[Tensor, "B T"], Metrics]:
    """TOPR (arXiv 2503.14286): REINFORCE with weight 1 where A >= 0 and min(new / old of the whole row, 1) elsewhere.

    ``length_normalized`` takes the geometric mean of the row's ratios in place of their product, as verl does.
    The paper averages rows by length: ``loss_agg_mode="seq-mean-token-mean"``. ``actor/taper`` is the mean weight.
    """
    losses, weights = topr_loss(
        new_logprobs, old_logprobs, advantages, response_mask, length_normalized=length_normalized
    )
    losses = weighted(losses, rollout_weights, response_mask)
    taper = {"actor/taper": mean_metric(weights, response_mask)}
    return losses, policy_metrics(losses, new_logprobs, old_logprobs, response_mask).merge(taper)
