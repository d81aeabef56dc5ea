"""Losses of the score function, -w A log p, in which the weight w carries no gradient: REINFORCE, CISPO, TOPR."""

from math import inf

import torch
from jaxtyping import Bool, Float32
from torch import Tensor

from dagrl.ops.masks import masked_sum, where_masked
from dagrl.ops.ppo_clip import teaches_nothing


def reinforce_loss(
    logprobs: Float32[Tensor, "B T"], advantages: Float32[Tensor, "B T"], mask: Bool[Tensor, "B T"]
) -> Float32[Tensor, "B T"]:
    """REINFORCE (Williams 1992; GPG, arXiv 2504.02546): -A logprob at each token; its gradient is -A.

    There is no ratio: it is exact for the policy that wrote the responses only. GPG differs in its advantages alone.
    Degenerate cases: A = 0 gives 0, also where the log-prob is -inf; a masked token gives 0 and may hold NaN or inf in
    every input.
    """
    advantage, moving = where_masked(advantages.detach(), mask), where_masked(logprobs, mask)
    return -advantage * moving.masked_fill(teaches_nothing(moving, advantage), 0.0)


def cispo_loss(
    logprobs: Float32[Tensor, "B T"],
    old_logprobs: Float32[Tensor, "B T"],
    advantages: Float32[Tensor, "B T"],
    mask: Bool[Tensor, "B T"],
    *,
    eps_low: float | None = None,
    eps_high: float = 4.0,
) -> tuple[Float32[Tensor, "B T"], Bool[Tensor, "B T"]]:
    """CISPO (MiniMax-M1, arXiv 2506.13585): -sg(clip(r, 1 - eps_low, 1 + eps_high)) A logprob, and the clipped tokens.

    r = exp(logprobs - old_logprobs) and sg stops the gradient, so a clipped token still learns, with gradient
    -clip(r) A. The paper clips from above only: ``eps_low`` None is no lower bound. It gives no number; 1 + eps_high
    = 5 is ScaleRL's (arXiv 2510.13786) and TRL's. verl clips on both sides with PPO's range.

    Degenerate cases: when ``logprobs`` equals ``old_logprobs`` the weight is exactly 1, which is REINFORCE; a masked
    token gives 0 and may hold NaN or inf in every input.

    Raises:
        ValueError: if an eps is negative.
    """
    for name, eps in (("eps_low", eps_low), ("eps_high", eps_high)):
        if eps is not None and not eps >= 0:
            raise ValueError(f"{name} is {eps}, but it may not be negative")
    ratio = (where_masked(logprobs.detach(), mask) - where_masked(old_logprobs.detach(), mask)).exp()
    weights = ratio.clamp(0.0 if eps_low is None else 1 - eps_low, 1 + eps_high)
    return weights * reinforce_loss(logprobs, advantages, mask), (weights != ratio) & mask


def topr_loss(
    logprobs: Float32[Tensor, "B T"],
    old_logprobs: Float32[Tensor, "B T"],
    advantages: Float32[Tensor, "B T"],
    mask: Bool[Tensor, "B T"],
    *,
    length_normalized: bool = False,
) -> tuple[Float32[Tensor, "B T"], Float32[Tensor, "B T"]]:
    """TOPR (arXiv 2503.14286): REINFORCE whose negative rows are tapered; the loss at each token, and the weights.

    loss = -w A logprob with w = 1 where A >= 0 and w = min(pi / mu, 1) where A < 0, without gradient. pi / mu is the
    ratio of the whole response, exp(row sum of logprobs - old_logprobs over trained tokens), where ``old_logprobs``
    are those of the policy that wrote it. A bad response that has become unlikely stops pushing; a good one never
    does. ``length_normalized`` takes the row mean in place of the sum, as verl has it.

    Degenerate cases: when ``logprobs`` equals ``old_logprobs`` every weight is exactly 1, which is REINFORCE; a masked
    token gives 0, has weight 0 and may hold NaN or inf in every input.
    """
    log_ratio = where_masked(logprobs.detach(), mask) - where_masked(old_logprobs.detach(), mask)
    log_row = masked_sum(log_ratio, mask, dim=1)
    if length_normalized:
        log_row = log_row / mask.sum(dim=1).clamp(min=1)
    taper = log_row.clamp(max=0.0).exp().unsqueeze(-1)  # min(ratio, 1), without an overflow
    tapered = (where_masked(advantages.detach(), mask) < 0) | taper.isnan()
    weights = where_masked(torch.where(tapered, taper, 1.0), mask)
    return weights * reinforce_loss(logprobs, advantages, mask), weights


def capped(weights: Float32[Tensor, "B T"], cap: float | None) -> Float32[Tensor, "B T"]:
    """Importance weights cut off at ``cap``; None leaves them.

    Raises:
        ValueError: if the cap is not positive.
    """
    if cap is not None and not cap > 0:
        raise ValueError(f"the cap of importance weights is {cap}, but it must be positive, or None")
    return weights.clamp(max=inf if cap is None else cap)
