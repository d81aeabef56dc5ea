"""SAPO: a soft gate in place of PPO's hard clip."""

import torch
from jaxtyping import Bool, Float32
from torch import Tensor

from dagrl.ops.masks import where_masked


def sapo_loss(
    logprobs: Float32[Tensor, "B T"],
    old_logprobs: Float32[Tensor, "B T"],
    advantages: Float32[Tensor, "B T"],
    mask: Bool[Tensor, "B T"],
    *,
    tau_positive: float = 1.0,
    tau_negative: float = 1.05,
) -> Float32[Tensor, "B T"]:
    """SAPO (arXiv 2511.20347): -f(r) A at each token, with the gate f(r) = sigmoid(tau (r - 1)) 4 / tau.

    r = exp(logprobs - old_logprobs); tau is ``tau_positive`` where A > 0, else ``tau_negative``: a larger tau lets
    go sooner. d loss / d logprob = -4 s (1 - s) r A with s = sigmoid(tau (r - 1)), which fades out on both sides of
    r = 1 and is -A there. Differentiable in ``logprobs`` only.

    Degenerate cases: when ``logprobs`` equals ``old_logprobs`` the loss is -2 A / tau; where the gate is so far open
    that it rounds to 1 the loss is -4 A / tau and the gradient 0, however large the ratio; a masked token gives 0 and
    may hold NaN or inf in every input.

    Raises:
        ValueError: if a tau is not positive.
    """
    for name, tau in (("tau_positive", tau_positive), ("tau_negative", tau_negative)):
        if not tau > 0:
            raise ValueError(f"{name} is {tau}, but it must be positive")
    log_ratio = where_masked(logprobs, mask) - where_masked(old_logprobs.detach(), mask)
    advantage = where_masked(advantages.detach(), mask)
    tau = torch.full_like(advantage, tau_negative).masked_fill(advantage > 0, tau_positive)
    open_wide = torch.sigmoid(tau * log_ratio.detach().expm1()) == 1
    moving = log_ratio.masked_fill(open_wide, 0.0)  # filled before exp: no 0 * inf in the backward pass
    gate = torch.sigmoid(tau * moving.expm1()).masked_fill(open_wide, 1.0)
    return -(gate * 4 / tau) * advantage
