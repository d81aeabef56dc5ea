"""Losses of the policy update, token by token; the engine aggregates them."""

from math import inf
from typing import Literal

from jaxtyping import Bool, Float32
from torch import Tensor

from dagrl.data.metrics import Metrics
from dagrl.graph import loss
from dagrl.graph.checks import CallView
from dagrl.graph.contract import Refusal
from dagrl.ops.kl import kl_estimate
from dagrl.ops.masks import mean_metric
from dagrl.ops.policy_loss import gspo_loss, ppo_clip_loss


def _sane_clip(call: CallView) -> list[Refusal]:
    refusals: list[Refusal] = []
    eps, eps_high, dual_clip = call.options["eps"], call.options["eps_high"], call.options["dual_clip"]
    if not 0 < eps < 1:
        refusals.append((f"`eps` is {eps}", "the clip range must lie between 0 and 1"))
    if eps_high is not None and not 0 < eps_high < inf:
        refusals.append((f"`eps_high` is {eps_high}", "it must be above 0, or None for `eps`"))
    if dual_clip is not None and not 1 < dual_clip < inf:
        refusals.append((f"`dual_clip` is {dual_clip}", "it must be above 1"))
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
    return losses, _clip_metrics(losses, clipped, new_logprobs, old_logprobs, response_mask)


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
    *,
    eps: float = 3e-4,
    eps_high: float = 4e-4,
) -> tuple[Float32[Tensor, "B T"], Metrics]:
    """GSPO (arXiv 2507.18071): -min(s A, clip(s, 1 - eps, 1 + eps_high) A), s = exp(row mean of new - old).

    Every token of a row has the row's loss: ``loss_agg_mode="seq-mean-token-mean"`` makes it the paper's objective;
    a mode that counts tokens weighs long rows more. ``actor/clipped_rows`` is the share of clipped rows.
    """
    losses, clipped = gspo_loss(new_logprobs, old_logprobs, advantages, response_mask, eps_low=eps, eps_high=eps_high)
    rows = {"actor/clipped_rows": mean_metric(clipped.any(dim=1), response_mask.any(dim=1))}
    return losses, _clip_metrics(losses, clipped, new_logprobs, old_logprobs, response_mask).merge(rows)


def _clip_metrics(
    losses: Float32[Tensor, "B T"],
    clipped: Bool[Tensor, "B T"],
    new_logprobs: Float32[Tensor, "B T"],
    old_logprobs: Float32[Tensor, "B T"],
    mask: Bool[Tensor, "B T"],
) -> Metrics:
    old_kl = kl_estimate(old_logprobs, new_logprobs.detach(), mask, "k1")
    return Metrics(
        {
            "actor/pg_loss": mean_metric(losses.detach(), mask),
            "actor/clip_fraction": mean_metric(clipped, mask),
            "actor/old_kl": mean_metric(old_kl, mask),
        }
    )


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
