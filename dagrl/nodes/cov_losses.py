"""Clip-Cov and KL-Cov: policy losses that hold back the tokens which would cost most entropy (arXiv 2505.22617)."""

from math import inf
from typing import NamedTuple

from jaxtyping import Bool, Float32
from torch import Tensor

from dagrl.data.metrics import Metrics
from dagrl.graph import loss
from dagrl.graph.checks import CallView
from dagrl.graph.contract import Refusal
from dagrl.nodes.losses.shared import weighted
from dagrl.ops.covariance import (
    clip_cov_loss,
    clip_cov_selection,
    kl_cov_loss,
    kl_cov_selection,
    token_covariance,
)
from dagrl.ops.kl import kl_estimate
from dagrl.ops.masks import mean_metric
from dagrl.ops.ppo_clip import ppo_clip_loss


class Selected(NamedTuple):
    """Over a mini-batch: each token's term of the covariance, and the tokens that are treated apart."""

    covariance: Float32[Tensor, "B T"]
    selected: Bool[Tensor, "B T"]


def select_clip_cov(
    new_logprobs: Float32[Tensor, "B T"],
    old_logprobs: Float32[Tensor, "B T"],
    advantages: Float32[Tensor, "B T"],
    response_mask: Bool[Tensor, "B T"],
    token_uniform: Float32[Tensor, "B T"],
    *,
    eps: float,
    eps_high: float | None,
    clip_ratio: float,
    cov_low: float,
    cov_high: float,
) -> Selected:
    """Draw tokens between the bounds that PPO's clip lets pass."""
    _, clipped = ppo_clip_loss(new_logprobs, old_logprobs, advantages, response_mask, eps_low=eps, eps_high=eps_high)
    covariance = token_covariance(new_logprobs, advantages, response_mask)
    selected = clip_cov_selection(
        covariance, ~clipped, response_mask, token_uniform, share=clip_ratio, low=cov_low, high=cov_high
    )
    return Selected(covariance, selected)


def select_kl_cov(
    new_logprobs: Float32[Tensor, "B T"],
    advantages: Float32[Tensor, "B T"],
    response_mask: Bool[Tensor, "B T"],
    token_uniform: Float32[Tensor, "B T"],
    *,
    k_percent: float,
) -> Selected:
    """Take the tokens of the largest covariance."""
    covariance = token_covariance(new_logprobs, advantages, response_mask)
    return Selected(covariance, kl_cov_selection(covariance, response_mask, token_uniform, share=k_percent))


def _sane_clip_cov(call: CallView) -> list[Refusal]:
    options, refusals = call.options, list[Refusal]()
    if not 0 < options["eps"] <= 1:
        refusals.append((f"`eps` is {options['eps']}", "the clip range must lie above 0, and at most at 1"))
    if options["eps_high"] is not None and not 0 < options["eps_high"] < inf:
        refusals.append((f"`eps_high` is {options['eps_high']}", "it must be above 0, or None for `eps`"))
    if not options["cov_low"] < options["cov_high"]:
        what = f"`cov_low` is {options['cov_low']} and `cov_high` {options['cov_high']}"
        refusals.append((what, "the lower bound must be below the upper one"))
    return refusals + _sane_share(call, "clip_ratio")


def _sane_share(call: CallView, name: str) -> list[Refusal]:
    share = call.options[name]
    return [] if 0 < share <= 1 else [(f"`{name}` is {share}", "it is a share of all tokens: above 0, at most 1")]


def _sane_kl_cov(call: CallView) -> list[Refusal]:
    coef = call.options["ppo_kl_coef"]
    wrong: list[Refusal] = [] if 0 < coef < inf else [(f"`ppo_kl_coef` is {coef}", "it must be above 0, and finite")]
    return wrong + _sane_share(call, "k_percent")


@loss(prepare=select_clip_cov, check=_sane_clip_cov)
def clip_cov(
    new_logprobs: Float32[Tensor, "B T"],
    old_logprobs: Float32[Tensor, "B T"],
    advantages: Float32[Tensor, "B T"],
    response_mask: Bool[Tensor, "B T"],
    covariance: Float32[Tensor, "B T"],
    selected: Bool[Tensor, "B T"],
    rollout_weights: Float32[Tensor, "B T"] | None = None,
    *,
    eps: float = 0.2,
    eps_high: float | None = None,
    clip_ratio: float = 2e-4,
    cov_low: float = 1.0,
    cov_high: float = 5.0,
) -> tuple[Float32[Tensor, "B T"], Metrics]:
    """Clip-Cov (arXiv 2505.22617): PPO's clipped loss without a few tokens of high covariance, drawn at random.

    Of the tokens that PPO's clip lets pass and whose covariance of log-prob and advantage lies between ``cov_low`` and
    ``cov_high``, ``clip_ratio`` of all trained tokens (at least one) are drawn uniformly and give no gradient.
    Covariances are centred over all trained tokens of the mini-batch, all ranks and micro-batches included; verl and
    the paper's code centre them over a micro-batch. ``eps=1`` bounds the ratio above alone, by 2.
    """
    losses, clipped = clip_cov_loss(
        new_logprobs, old_logprobs, advantages, selected, response_mask, eps_low=eps, eps_high=eps_high
    )
    losses = weighted(losses, rollout_weights, response_mask)
    metrics = _metrics(losses, new_logprobs, old_logprobs, covariance, selected, response_mask)
    return losses, metrics.merge({"actor/clip_fraction": mean_metric(clipped, response_mask)})


@loss(prepare=select_kl_cov, check=_sane_kl_cov)
def kl_cov(
    new_logprobs: Float32[Tensor, "B T"],
    old_logprobs: Float32[Tensor, "B T"],
    advantages: Float32[Tensor, "B T"],
    response_mask: Bool[Tensor, "B T"],
    covariance: Float32[Tensor, "B T"],
    selected: Bool[Tensor, "B T"],
    rollout_weights: Float32[Tensor, "B T"] | None = None,
    *,
    k_percent: float = 2e-3,
    ppo_kl_coef: float = 1.0,
) -> tuple[Float32[Tensor, "B T"], Metrics]:
    """KL-Cov (arXiv 2505.22617): -r A, and a KL penalty to the old policy at the tokens of the largest covariance.

    ``k_percent`` is the share of all trained tokens (at least one), a fraction as in the paper's code in spite of its
    name; the penalty is ``ppo_kl_coef`` * |log r|. The ratio is not clipped. Covariances are centred as for
    ``clip_cov``. On the first step after sampling r is 1 and the penalty has no gradient: it acts from the second
    mini-batch or epoch on.
    """
    losses = kl_cov_loss(new_logprobs, old_logprobs, advantages, selected, response_mask, coef=ppo_kl_coef)
    losses = weighted(losses, rollout_weights, response_mask)
    return losses, _metrics(losses, new_logprobs, old_logprobs, covariance, selected, response_mask)


def _metrics(
    losses: Float32[Tensor, "B T"],
    new_logprobs: Float32[Tensor, "B T"],
    old_logprobs: Float32[Tensor, "B T"],
    covariance: Float32[Tensor, "B T"],
    selected: Bool[Tensor, "B T"],
    mask: Bool[Tensor, "B T"],
) -> Metrics:
    old_kl = kl_estimate(old_logprobs, new_logprobs.detach(), mask, "k1")
    return Metrics(
        {
            "actor/pg_loss": mean_metric(losses.detach(), mask),
            "actor/old_kl": mean_metric(old_kl, mask),
            "actor/covariance": mean_metric(covariance, mask),
            "actor/cov_selected": mean_metric(selected, mask),
        }
    )
