"""Token covariance of log-probs and advantages, and the losses that hold back its largest terms (Clip-Cov, KL-Cov)."""

import torch
from jaxtyping import Bool, Float32
from torch import Tensor

from dagrl.ops.masks import masked_mean, where_masked
from dagrl.ops.ppo_clip import ppo_clip_loss, teaches_nothing


def token_covariance(
    logprobs: Float32[Tensor, "B T"], advantages: Float32[Tensor, "B T"], mask: Bool[Tensor, "B T"]
) -> Float32[Tensor, "B T"]:
    """Each trained token's term of the covariance of log-prob and advantage (arXiv 2505.22617).

    (logprob - mean logprob) * (advantage - mean advantage), both means over all trained tokens given, in float64.
    Degenerate cases: of one token, or of equal advantages, every term is 0; a masked token gives 0 and may hold NaN.
    """
    centred = [where_masked(values, mask).double() for values in (logprobs, advantages)]
    centred = [values - masked_mean(values, mask) for values in centred]
    return where_masked(centred[0] * centred[1], mask).to(logprobs.dtype)


def clip_cov_selection(
    covariance: Float32[Tensor, "B T"],
    candidates: Bool[Tensor, "B T"],
    mask: Bool[Tensor, "B T"],
    uniform: Float32[Tensor, "B T"],
    *,
    share: float,
    low: float,
    high: float,
) -> Bool[Tensor, "B T"]:
    """The tokens whose gradient Clip-Cov takes (arXiv 2505.22617): a uniform draw from low < cov < high.

    Of ``candidates`` within the bounds those with the smallest ``uniform``: max(1, floor(share * trained tokens)) of
    them, or all if there are fewer. (The paper's text has no lower bound of one token; its code has.)
    """
    within = candidates & mask & (covariance > low) & (covariance < high)
    order = where_masked(uniform, within, torch.inf).flatten().argsort(stable=True)
    return _first(order, num_selected(mask, share), within)


def kl_cov_selection(
    covariance: Float32[Tensor, "B T"], mask: Bool[Tensor, "B T"], uniform: Float32[Tensor, "B T"], *, share: float
) -> Bool[Tensor, "B T"]:
    """The tokens that KL-Cov holds to the old policy (arXiv 2505.22617): those of the largest covariance.

    max(1, floor(share * trained tokens)) of them; of equal covariances those with the smallest ``uniform`` go first, so
    that no token's place decides.
    """
    by_draw = uniform.flatten().argsort(stable=True)
    ranked = where_masked(covariance, mask, -torch.inf).flatten()[by_draw].argsort(descending=True, stable=True)
    return _first(by_draw[ranked], num_selected(mask, share), mask)


def num_selected(mask: Bool[Tensor, "B T"], share: float) -> int:
    """How many trained tokens a share is: floor, but at least one."""
    return max(1, int(share * int(mask.sum())))


def _first(order: Tensor, count: int, among: Bool[Tensor, "B T"]) -> Bool[Tensor, "B T"]:
    """The first ``count`` places of an order, where they are ``among`` those wanted."""
    chosen = torch.zeros(among.numel(), dtype=torch.bool, device=among.device)
    chosen[order[:count]] = True
    return chosen.view(among.shape) & among


def clip_cov_loss(
    logprobs: Float32[Tensor, "B T"],
    old_logprobs: Float32[Tensor, "B T"],
    advantages: Float32[Tensor, "B T"],
    selected: Bool[Tensor, "B T"],
    mask: Bool[Tensor, "B T"],
    *,
    eps_low: float = 0.2,
    eps_high: float | None = None,
) -> tuple[Float32[Tensor, "B T"], Bool[Tensor, "B T"]]:
    """PPO's clipped loss, 0 and without gradient at selected tokens (arXiv 2505.22617); which ones PPO clipped.

    Raises:
        ValueError: if an eps is negative.
    """
    losses, clipped = ppo_clip_loss(logprobs, old_logprobs, advantages, mask, eps_low=eps_low, eps_high=eps_high)
    return losses.masked_fill(selected, 0.0), clipped


def kl_cov_loss(
    logprobs: Float32[Tensor, "B T"],
    old_logprobs: Float32[Tensor, "B T"],
    advantages: Float32[Tensor, "B T"],
    selected: Bool[Tensor, "B T"],
    mask: Bool[Tensor, "B T"],
    *,
    coef: float = 1.0,
) -> Float32[Tensor, "B T"]:
    """-r A, and + coef * |log r| at selected tokens, r = exp(logprobs - old_logprobs) (arXiv 2505.22617).

    The ratio is not clipped. |log r| is how the paper's code estimates the KL to the old policy; its gradient is that
    of its sign, 0 where the policies agree. A masked token gives 0 and may hold NaN.
    """
    log_ratio = where_masked(logprobs, mask) - where_masked(old_logprobs.detach(), mask)
    advantage = where_masked(advantages.detach(), mask)
    surrogate = -log_ratio.masked_fill(teaches_nothing(log_ratio, advantage), 0.0).exp() * advantage
    return surrogate + coef * log_ratio.abs().masked_fill(~selected, 0.0)
