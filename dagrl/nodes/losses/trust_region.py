"""Losses that keep near the old policy without clipping ratios: SAPO, DPPO and DRO."""

from math import inf

from jaxtyping import Bool, Float32
from torch import Tensor

from dagrl.data.metrics import Metrics
from dagrl.graph import loss
from dagrl.graph.checks import CallView
from dagrl.graph.contract import Refusal
from dagrl.nodes.losses.shared import not_positive, policy_metrics, weighs_itself, weighted
from dagrl.ops.dppo import dppo_loss
from dagrl.ops.dro import dro_loss
from dagrl.ops.sapo import sapo_loss


def _sane_gate(call: CallView) -> list[Refusal]:
    return not_positive(call, "tau_positive", "tau_negative")


@loss(check=_sane_gate)
def sapo(
    new_logprobs: Float32[Tensor, "B T"],
    old_logprobs: Float32[Tensor, "B T"],
    advantages: Float32[Tensor, "B T"],
    response_mask: Bool[Tensor, "B T"],
    rollout_weights: Float32[Tensor, "B T"] | None = None,
    *,
    tau_positive: float = 1.0,
    tau_negative: float = 1.05,
) -> tuple[Float32[Tensor, "B T"], Metrics]:
    """SAPO (arXiv 2511.20347): -f(r) A with the soft gate f(r) = sigmoid(tau (r - 1)) 4 / tau in place of a clip.

    tau is ``tau_positive`` where A > 0, else ``tau_negative``; a larger one fades out sooner. The paper takes the mean
    over each row, then over rows: ``loss_agg_mode="seq-mean-token-mean"``.
    """
    losses = sapo_loss(
        new_logprobs,
        old_logprobs,
        advantages,
        response_mask,
        tau_positive=tau_positive,
        tau_negative=tau_negative,
    )
    losses = weighted(losses, rollout_weights, response_mask)
    return losses, policy_metrics(losses, new_logprobs, old_logprobs, response_mask)


def _sane_divergence(call: CallView) -> list[Refusal]:
    return [*not_positive(call, "delta", "delta_high", "ratio_cap"), *weighs_itself(call)]


@loss(check=_sane_divergence)
def dppo_tv(
    new_logprobs: Float32[Tensor, "B T"],
    rollout_logprobs: Float32[Tensor, "B T"],
    advantages: Float32[Tensor, "B T"],
    response_mask: Bool[Tensor, "B T"],
    *,
    delta: float = 0.15,
    delta_high: float | None = None,
    ratio_cap: float | None = None,
) -> tuple[Float32[Tensor, "B T"], Metrics]:
    """DPPO, binary TV (arXiv 2602.04879): -r A, masked where a token's probability has moved by more than ``delta``.

    r = new / rollout: the paper holds the trust region to the policy that wrote the responses and finds that
    recomputed log-probs fail; verl takes the recomputed ones. ``delta_high`` (None: delta) is the limit where A > 0.
    ``ratio_cap`` cuts r off (None: never). ``actor/clip_fraction`` counts masked tokens.
    """
    losses, stopped = dppo_loss(
        new_logprobs,
        rollout_logprobs,
        advantages,
        response_mask,
        divergence="tv",
        delta=delta,
        delta_high=delta_high,
        ratio_cap=ratio_cap,
    )
    return losses, policy_metrics(losses, new_logprobs, rollout_logprobs, response_mask, stopped)


@loss(check=_sane_divergence)
def dppo_kl(
    new_logprobs: Float32[Tensor, "B T"],
    rollout_logprobs: Float32[Tensor, "B T"],
    advantages: Float32[Tensor, "B T"],
    response_mask: Bool[Tensor, "B T"],
    *,
    delta: float = 0.05,
    delta_high: float | None = None,
    ratio_cap: float | None = None,
) -> tuple[Float32[Tensor, "B T"], Metrics]:
    """DPPO, binary KL (arXiv 2602.04879): `dppo_tv` with the KL of token against all others, in nats, as distance."""
    losses, stopped = dppo_loss(
        new_logprobs,
        rollout_logprobs,
        advantages,
        response_mask,
        divergence="kl",
        delta=delta,
        delta_high=delta_high,
        ratio_cap=ratio_cap,
    )
    return losses, policy_metrics(losses, new_logprobs, rollout_logprobs, response_mask, stopped)


def _sane_pull(call: CallView) -> list[Refusal]:
    beta = call.options["beta"]
    return [] if 0 < beta < inf else [(f"`beta` is {beta}", "it must be above 0; without a pull use `reinforce`")]


@loss(check=_sane_pull)
def dro(
    new_logprobs: Float32[Tensor, "B T"],
    old_logprobs: Float32[Tensor, "B T"],
    advantages: Float32[Tensor, "B T"],
    response_mask: Bool[Tensor, "B T"],
    rollout_weights: Float32[Tensor, "B T"] | None = None,
    *,
    beta: float = 0.1,
) -> tuple[Float32[Tensor, "B T"], Metrics]:
    """Direct reward optimisation (arXiv 2405.19107), by token: -A times the log-prob + beta / 2 (new - old)^2.

    The pull takes the place of a clip and of a KL term. The paper's anchor is the reference: pass
    ``reference.rename(ref_logprobs="old_logprobs")``.
    """
    losses = dro_loss(new_logprobs, old_logprobs, advantages, response_mask, beta=beta)
    losses = weighted(losses, rollout_weights, response_mask)
    return losses, policy_metrics(losses, new_logprobs, old_logprobs, response_mask)
