"""Clipped policy-gradient losses: PPO's ratio of each token, GSPO's ratio of each row."""

from math import inf

import torch
from jaxtyping import Bool, Float32
from torch import Tensor

from dagrl.ops.masks import row_mean, where_masked


def ppo_clip_loss(
    logprobs: Float32[Tensor, "B T"],
    old_logprobs: Float32[Tensor, "B T"],
    advantages: Float32[Tensor, "B T"],
    mask: Bool[Tensor, "B T"],
    *,
    eps_low: float = 0.2,
    eps_high: float | None = None,
    dual_clip: float | None = None,
) -> tuple[Float32[Tensor, "B T"], Bool[Tensor, "B T"]]:
    """PPO's clipped loss (arXiv 1707.06347) at each token, and which tokens the clip took the gradient from.

    With r = exp(logprobs - old_logprobs): loss = -min(r A, clip(r, 1 - eps_low, 1 + eps_high) A).
    ``eps_high`` is ``eps_low`` unless given (clip-higher, arXiv 2503.14476). ``dual_clip`` = c bounds the
    loss of a negative advantage: min(loss, -c A) (arXiv 1912.09729). Differentiable in ``logprobs`` only.

    The second result is True at trained tokens beyond the lower or upper bound in the direction of
    their advantage; tokens that only the dual clip stops are not counted. Degenerate cases: when
    ``logprobs`` equals ``old_logprobs`` the ratio is exactly 1, the loss -A and nothing is clipped;
    a masked token gives 0 and may hold NaN or inf in every input.

    Raises:
        ValueError: if an eps is negative or ``dual_clip`` is not above 1.
    """
    upper, lower, most = _bounds(eps_low, eps_high, dual_clip)
    log_ratio = where_masked(logprobs, mask) - where_masked(old_logprobs.detach(), mask)
    advantage = where_masked(advantages.detach(), mask)
    ratio = log_ratio.detach().exp()
    clipped = ((advantage > 0) & (ratio > upper)) | ((advantage < 0) & (ratio < lower))
    dual_clipped = (advantage < 0) & (ratio > most)
    bound = torch.full_like(ratio, lower).masked_fill(advantage > 0, upper).masked_fill(dual_clipped, most)
    stopped = clipped | dual_clipped
    moving = log_ratio.masked_fill(stopped, 0.0).exp()  # filled before exp: no 0 * inf in the backward pass
    return -torch.where(stopped, bound, moving) * advantage, clipped


def gspo_loss(
    logprobs: Float32[Tensor, "B T"],
    old_logprobs: Float32[Tensor, "B T"],
    advantages: Float32[Tensor, "B T"],
    mask: Bool[Tensor, "B T"],
    *,
    eps_low: float = 3e-4,
    eps_high: float = 4e-4,
) -> tuple[Float32[Tensor, "B T"], Bool[Tensor, "B T"]]:
    """GSPO (arXiv 2507.18071): PPO's clip with one ratio for each row; the loss at each token, and which were clipped.

    With s = exp(row mean of logprobs - old_logprobs over trained tokens), every trained token of a row has the loss
    -min(s A, clip(s, 1 - eps_low, 1 + eps_high) A), so its mean over the row is the row's loss, and
    d loss / d logprob = -s A / (trained tokens of the row) where the clip lets it pass. Differentiable in
    ``logprobs`` only.

    Degenerate cases: when ``logprobs`` equals ``old_logprobs`` s is exactly 1 and nothing is clipped; a masked token
    gives 0 and may hold NaN or inf in every input; a row without a trained token gives 0 everywhere.

    Raises:
        ValueError: if an eps is negative.
    """
    upper, lower, _ = _bounds(eps_low, eps_high, None)
    log_ratio = where_masked(logprobs, mask) - where_masked(old_logprobs.detach(), mask)
    log_s = row_mean(log_ratio, mask).unsqueeze(-1).expand(mask.shape)
    advantage = where_masked(advantages.detach(), mask)
    s = log_s.detach().exp()
    clipped = ((advantage > 0) & (s > upper)) | ((advantage < 0) & (s < lower))
    bound = torch.full_like(s, lower).masked_fill(advantage > 0, upper)
    moving = log_s.masked_fill(clipped | ~mask, 0.0).exp()  # filled before exp: no 0 * inf in the backward pass
    return -torch.where(clipped, bound, moving) * advantage, clipped


def _bounds(eps_low: float, eps_high: float | None, dual_clip: float | None) -> tuple[float, float, float]:
    eps_high = eps_low if eps_high is None else eps_high
    for name, eps in (("eps_low", eps_low), ("eps_high", eps_high)):
        if not eps >= 0:
            raise ValueError(f"{name} is {eps}, but it may not be negative")
    if dual_clip is not None and not dual_clip > 1:
        raise ValueError(f"dual_clip is {dual_clip}, but it must be above 1: below, it would stop on-policy tokens")
    return 1 + eps_high, 1 - eps_low, inf if dual_clip is None else dual_clip
