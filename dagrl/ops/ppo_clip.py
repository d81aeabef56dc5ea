"""PPO's clipped loss: the ratio of each token may not profit from leaving the clip range."""

from math import inf

import torch
from jaxtyping import Bool, Float32
from torch import Tensor

from dagrl.ops.masks import where_masked


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
    lower, upper = clip_bounds(eps_low, eps_high)
    most = _dual_bound(dual_clip)
    log_ratio = where_masked(logprobs, mask) - where_masked(old_logprobs.detach(), mask)
    advantage = where_masked(advantages.detach(), mask)
    ratio = log_ratio.detach().exp()
    clipped = ((advantage > 0) & (ratio > upper)) | ((advantage < 0) & (ratio < lower))
    dual_clipped = (advantage < 0) & (ratio > most)
    bound = torch.full_like(ratio, lower).masked_fill(advantage > 0, upper).masked_fill(dual_clipped, most)
    stopped = clipped | dual_clipped
    idle = stopped | teaches_nothing(log_ratio, advantage)
    moving = log_ratio.masked_fill(idle, 0.0).exp()  # filled before exp: no 0 * inf in the backward pass
    return -torch.where(stopped, bound, moving) * advantage, clipped


def teaches_nothing(log_ratio: Float32[Tensor, "B T"], advantage: Float32[Tensor, "B T"]) -> Bool[Tensor, "B T"]:
    """Places with an advantage of 0, whatever their ratio, even if exp overflows; a NaN ratio is not hidden.

    Every loss with a ratio fills what it takes exp of there, since 0 * inf would be NaN.
    """
    return (advantage == 0) & ~log_ratio.detach().isnan()


def clip_bounds(eps_low: float, eps_high: float | None) -> tuple[float, float]:
    """The lowest and highest ratio of a clip range; ``eps_high`` None is ``eps_low``.

    Raises:
        ValueError: if an eps is negative.
    """
    eps_high = eps_low if eps_high is None else eps_high
    for name, eps in (("eps_low", eps_low), ("eps_high", eps_high)):
        if not eps >= 0:
            raise ValueError(f"{name} is {eps}, but it may not be negative")
    return 1 - eps_low, 1 + eps_high


def _dual_bound(dual_clip: float | None) -> float:
    if dual_clip is not None and not dual_clip > 1:
        raise ValueError(f"dual_clip is {dual_clip}, but it must be above 1: below, it would stop on-policy tokens")
    return inf if dual_clip is None else dual_clip
