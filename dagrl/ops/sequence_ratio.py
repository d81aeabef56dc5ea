"""Losses with one ratio for each row: GSPO clips the row's ratio, GMPO the tokens that it is made of."""

import torch
from jaxtyping import Bool, Float32
from torch import Tensor

from dagrl.ops.masks import row_mean, where_masked
from dagrl.ops.ppo_clip import clip_bounds, teaches_nothing


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
    -min(s A, clip(s, 1 - eps_low, 1 + eps_high) A), so its mean over the row is the row's loss. Its gradient is that of
    the token's own log-prob, -s A where the clip lets it pass (GSPO-token, section 4.3): a token's weight or advantage
    then acts on that token alone, and with one advantage a row the sum over the row is GSPO's gradient. Differentiable
    in ``logprobs`` only.

    Degenerate cases: when ``logprobs`` equals ``old_logprobs`` s is exactly 1 and nothing is clipped; a masked token
    gives 0 and may hold NaN or inf in every input; a row without a trained token gives 0 everywhere.

    Raises:
        ValueError: if an eps is negative.
    """
    lower, upper = clip_bounds(eps_low, eps_high)
    log_ratio = where_masked(logprobs, mask) - where_masked(old_logprobs.detach(), mask)
    log_s = _log_of_row(log_ratio, mask)
    advantage = where_masked(advantages.detach(), mask)
    s = log_s.exp()
    clipped = ((advantage > 0) & (s > upper)) | ((advantage < 0) & (s < lower))
    bound = torch.full_like(s, lower).masked_fill(advantage > 0, upper)
    idle = clipped | ~mask | teaches_nothing(log_s, advantage)
    return -torch.where(clipped, bound, _moving_ratio(log_s, log_ratio, idle)) * advantage, clipped


def gmpo_loss(
    logprobs: Float32[Tensor, "B T"],
    old_logprobs: Float32[Tensor, "B T"],
    advantages: Float32[Tensor, "B T"],
    mask: Bool[Tensor, "B T"],
    *,
    eps_low: float = 0.4,
    eps_high: float = 0.4,
) -> tuple[Float32[Tensor, "B T"], Bool[Tensor, "B T"]]:
    """GMPO (arXiv 2507.20673): the geometric mean of a row's clipped token ratios; loss at each token, and the clipped.

    The clip is one of log ratios l = logprobs - old_logprobs, and of each token: l' = min(l, eps_high) where A > 0,
    max(l, -eps_low) where A < 0, so ratios stay within (exp(-eps_low), exp(eps_high)), by default (e^-0.4, e^0.4).
    With g = exp(row mean of l') every trained token of a row has the loss -g A, so its mean over the row is the row's
    loss. Its gradient is that of the token's own log-prob, -g A unless it is clipped, so that a token's weight or
    advantage acts on that token alone. Differentiable in ``logprobs`` only.

    The paper has one advantage a row; where tokens of a row differ in theirs, verl takes the row's mean. Degenerate
    cases: when ``logprobs`` equals ``old_logprobs`` g is exactly 1 and nothing is clipped; a token with A = 0 is not
    clipped; a masked token gives 0 and may hold NaN or inf in every input; a row without a trained token gives 0
    everywhere.

    Raises:
        ValueError: if an eps is negative.
    """
    clip_bounds(eps_low, eps_high)
    log_ratio = where_masked(logprobs, mask) - where_masked(old_logprobs.detach(), mask)
    advantage = where_masked(advantages.detach(), mask)
    high, low = (advantage > 0) & (log_ratio > eps_high), (advantage < 0) & (log_ratio < -eps_low)
    held = log_ratio.masked_fill(high, eps_high).masked_fill(low, -eps_low)
    log_g = _log_of_row(held, mask)
    idle = ~mask | teaches_nothing(log_g, advantage)
    return -_moving_ratio(log_g, held, idle) * advantage, high | low


def _log_of_row(values: Float32[Tensor, "B T"], mask: Bool[Tensor, "B T"]) -> Float32[Tensor, "B T"]:
    """Each row's mean over its trained tokens, at every place and without gradient."""
    return row_mean(values.detach(), mask).unsqueeze(-1).expand(values.shape)


def _moving_ratio(
    log_row: Float32[Tensor, "B T"], values: Float32[Tensor, "B T"], idle: Bool[Tensor, "B T"]
) -> Float32[Tensor, "B T"]:
    """The row's ratio, with the gradient of the token's own value; 1 without a gradient where idle.

    Idle places are filled before they are subtracted or exponentiated: no inf - inf, and no 0 * inf backward.
    """
    own = values.masked_fill(idle, 0.0)
    return (log_row.masked_fill(idle, 0.0) + (own - own.detach())).exp()
