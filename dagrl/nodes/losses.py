"""Losses of the policy update, token by token; the engine aggregates them."""

from math import inf
from typing import Literal

from jaxtyping import Bool, Float32
from torch import Tensor

from dagrl.data.metrics import Metrics
from dagrl.graph import loss
from dagrl.graph.checks import CallView
from dagrl.ops.kl import kl_estimate
from dagrl.ops.masks import mean_metric
from dagrl.ops.policy_loss import ppo_clip_loss


def _sane_clip(call: CallView) -> list[str]:
    refusals: list[str] = []
    eps, eps_high, dual_clip = call.options["eps"], call.options["eps_high"], call.options["dual_clip"]
    if not 0 < eps < 1:
        refusals.append(f"`eps` is {eps}: the clip range must lie between 0 and 1")
    if eps_high is not None and not 0 < eps_high < inf:
        refusals.append(f"`eps_high` is {eps_high}: it must be above 0, or None for `eps`")
    if dual_clip is not None and not 1 < dual_clip < inf:
        refusals.append(f"`dual_clip` is {dual_clip}: it must be above 1")
    return refusals


@loss(check=_sane_clip)
def ppo_clip(
    new_logprobs: Float32[Tensor, "B T"],
    old_logprobs: Float32[Tensor, "B T"],
    advantages: Float32[Tensor, "B T"],
    response_mask: Bool[Tensor, "B T"],
    *,
    eps: float = 0.2,
    eps_high: float | None = None,
    dual_clip: float | None = None,
) -> tuple[Float32[Tensor, "B T"], Metrics]:
    """The clipped surrogate of PPO (arXiv 1707.06347): -min(r A, clip(r, 1 - eps, 1 + eps_high) A), r = new / old.

    ``eps_high`` widens the upper side (clip-higher, arXiv 2503.14476; None: eps). ``dual_clip`` bounds the loss of
    negative advantages by -dual_clip A (arXiv 1912.09729).
    """
    losses, clipped = ppo_clip_loss(
        new_logprobs, old_logprobs, advantages, response_mask, eps_low=eps, eps_high=eps_high, dual_clip=dual_clip
    )
    old_kl = kl_estimate(old_logprobs, new_logprobs.detach(), response_mask, "k1")
    metrics = {
        "actor/pg_loss": mean_metric(losses.detach(), response_mask),
        "actor/clip_fraction": mean_metric(clipped, response_mask),
        "actor/old_kl": mean_metric(old_kl, response_mask),
    }
    return losses, Metrics(metrics)


@loss()
def kl_loss(
    new_logprobs: Float32[Tensor, "B T"],
    ref_logprobs: Float32[Tensor, "B T"],
    response_mask: Bool[Tensor, "B T"],
    *,
    kind: Literal["k1", "k2", "k3"] = "k3",
) -> tuple[Float32[Tensor, "B T"], Metrics]:
    """An estimate of KL(policy || reference) from the sampled tokens (Schulman's k1, k2, k3).

    k1's gradient is 0 in expectation, k2's is the gradient of the KL, k3's that of the forward KL.
    """
    estimates = kl_estimate(new_logprobs, ref_logprobs, response_mask, kind)
    return estimates, Metrics({"actor/ref_kl": mean_metric(estimates.detach(), response_mask)})


@loss()
def entropy_bonus(
    new_entropy: Float32[Tensor, "B T"], response_mask: Bool[Tensor, "B T"]
) -> tuple[Float32[Tensor, "B T"], Metrics]:
    """The policy's entropy in nats; a pipeline subtracts it, e.g. with a coefficient of 0.001."""
    return new_entropy, Metrics({"actor/entropy_bonus": mean_metric(new_entropy.detach(), response_mask)})
