"""Losses with one ratio a row: GSPO and GMPO."""

from math import inf

from jaxtyping import Bool, Float32
from torch import Tensor

from dagrl.data.metrics import Metrics
from dagrl.graph import loss
from dagrl.graph.checks import CallView
from dagrl.graph.contract import Refusal
from dagrl.nodes.losses.shared import policy_metrics, weighted
from dagrl.ops.masks import mean_metric
from dagrl.ops.sequence_ratio import gmpo_loss, gspo_loss


def _sane_sequence_clip(call: CallView) -> list[Refusal]:
    return [
        (
            f"`{name}` is {call.options[name]}",
            "the clip range must lie between 0 and 1 (the paper's are 3e-4 and 4e-4)",
        )
        for name in ("eps", "eps_high")
        if not 0 < call.options[name] < 1
    ]


@loss(check=_sane_sequence_clip)
def gspo(
    new_logprobs: Float32[Tensor, "B T"],
    old_logprobs: Float32[Tensor, "B T"],
    advantages: Float32[Tensor, "B T"],
    response_mask: Bool[Tensor, "B T"],
    rollout_weights: Float32[Tensor, "B T"] | None = None,
    *,
    eps: float = 3e-4,
    eps_high: float = 4e-4,
) -> tuple[Float32[Tensor, "B T"], Metrics]:
    """GSPO (arXiv 2507.18071): -min(s A, clip(s, 1 - eps, 1 + eps_high) A), s = exp(row mean of new - old).

    Every token of a row has the row's loss, with a gradient of its own: ``loss_agg_mode="seq-mean-token-mean"`` makes
    it the paper's objective; a mode that counts tokens weighs long rows more. ``actor/clipped_rows`` is the share of
    clipped rows.
    """
    losses, clipped = gspo_loss(new_logprobs, old_logprobs, advantages, response_mask, eps_low=eps, eps_high=eps_high)
    losses = weighted(losses, rollout_weights, response_mask)
    rows = {"actor/clipped_rows": mean_metric(clipped.any(dim=1), response_mask.any(dim=1))}
    return losses, policy_metrics(losses, new_logprobs, old_logprobs, response_mask, clipped).merge(rows)


def _sane_log_clip(call: CallView) -> list[Refusal]:
    return [
        (f"`{name}` is {call.options[name]}", "it bounds log ratios, so it must be above 0 (the paper's is 0.4)")
        for name in ("eps", "eps_high")
        if not 0 < call.options[name] < inf
    ]


@loss(check=_sane_log_clip)
def gmpo(
    new_logprobs: Float32[Tensor, "B T"],
    old_logprobs: Float32[Tensor, "B T"],
    advantages: Float32[Tensor, "B T"],
    response_mask: Bool[Tensor, "B T"],
    rollout_weights: Float32[Tensor, "B T"] | None = None,
    *,
    eps: float = 0.4,
    eps_high: float = 0.4,
) -> tuple[Float32[Tensor, "B T"], Metrics]:
    """GMPO (arXiv 2507.20673): -g A, g the geometric mean of the row's ratios, each clipped to (e^-eps, e^eps_high).

    Every token of a row has the row's loss, with a gradient of its own: ``loss_agg_mode="seq-mean-token-mean"`` makes
    it the paper's objective. The clip is on log ratios, and on the side that the token's advantage pushes to.
    """
    losses, clipped = gmpo_loss(new_logprobs, old_logprobs, advantages, response_mask, eps_low=eps, eps_high=eps_high)
    losses = weighted(losses, rollout_weights, response_mask)
    return losses, policy_metrics(losses, new_logprobs, old_logprobs, response_mask, clipped)
