"""Decoupled PPO: the policy that the clip holds on to is not the one that wrote the responses."""

from typing import Literal, get_args

import torch
from jaxtyping import Bool, Float32
from torch import Tensor

from dagrl.ops.masks import where_masked
from dagrl.ops.ppo_clip import ppo_clip_loss, teaches_nothing

OverCap = Literal["truncate", "drop"]


def decoupled_ppo_loss(
    logprobs: Float32[Tensor, "B T"],
    proximal_logprobs: Float32[Tensor, "B T"],
    behaviour_logprobs: Float32[Tensor, "B T"],
    advantages: Float32[Tensor, "B T"],
    mask: Bool[Tensor, "B T"],
    *,
    eps_low: float = 0.2,
    eps_high: float | None = None,
    dual_clip: float | None = None,
    weight_cap: float | None = None,
    over_cap: OverCap = "truncate",
) -> tuple[Float32[Tensor, "B T"], Bool[Tensor, "B T"], Float32[Tensor, "B T"]]:
    """Decoupled PPO (arXiv 2110.00641; AReaL, arXiv 2505.24298): loss, clipped tokens and behaviour weights.

    With the behaviour weight w = exp(proximal - behaviour), without gradient, and r = exp(logprobs - proximal):
    loss = -w min(r A, clip(r, 1 - eps_low, 1 + eps_high) A). Neither paper bounds w. ``weight_cap`` does: a larger w
    becomes the cap ("truncate") or 0 ("drop", as AReaL's code has it). The other options are those of
    `ppo_clip_loss`; dual clipping acts before the weight. Differentiable in ``logprobs`` only.

    Degenerate cases: where behaviour and proximal log-probs are equal w is exactly 1 and the loss is PPO's; A = 0
    gives 0, however large w; a masked token gives 0, has weight 0 and may hold NaN or inf in every input. A dropped
    token keeps its place in the denominators.

    Raises:
        ValueError: if an eps is negative, ``dual_clip`` is not above 1, ``weight_cap`` is not positive or
            ``over_cap`` is unknown.
    """
    if weight_cap is not None and not weight_cap > 0:
        raise ValueError(f"weight_cap is {weight_cap}, but it must be positive, or None for no cap")
    if over_cap not in get_args(OverCap):
        raise ValueError(f"unknown over_cap `{over_cap}`: choose one of {', '.join(get_args(OverCap))}")
    losses, clipped = ppo_clip_loss(
        logprobs, proximal_logprobs, advantages, mask, eps_low=eps_low, eps_high=eps_high, dual_clip=dual_clip
    )
    gap = where_masked(proximal_logprobs.detach(), mask) - where_masked(behaviour_logprobs.detach(), mask)
    weights = where_masked(gap.exp(), mask)
    if weight_cap is not None:
        limit = weight_cap if over_cap == "truncate" else 0.0
        weights = torch.where(weights > weight_cap, limit, weights)
    idle = teaches_nothing(gap, where_masked(advantages.detach(), mask))  # no 0 * inf
    return losses * weights.masked_fill(idle, 0.0), clipped, weights
