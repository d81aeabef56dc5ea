"""Generalised advantage estimation, for one turn and for many."""

import torch
from jaxtyping import Bool, Float, Int64
from torch import Tensor

from dagrl.ops.advantages.returns import discounted_sum


def gae_advantages(
    token_rewards: Float[Tensor, "B T"],
    values: Float[Tensor, "B T"],
    response_mask: Bool[Tensor, "B T"],
    *,
    gamma: float = 1.0,
    lam: float = 1.0,
) -> Float[Tensor, "B T"]:
    """GAE (arXiv 1506.02438): A_t = d_t + gamma lam A_next, d_t = r_t + gamma V_next - V_t, 0 at masked tokens.

    "Next" is the next trained token of the row: masked tokens (tool output, padding) pass its value and advantage
    through without discount, and their own reward and value, NaN or not, are never read. After the last trained token
    both are 0. Returns, the targets of the critic, are A_t + V_t. Sums are float64.

    Degenerate cases: a row without a trained token is 0 everywhere. lam = 1 gives the reward-to-go less the value,
    lam = 0 the one-step error. A NaN value at a trained token is not hidden.
    """
    exact = values.detach().double()  # masked ones are neither followed nor, in the sum, kept
    following = torch.cat([exact, torch.zeros_like(exact[:, :1])], 1).gather(1, _next_trained(response_mask))
    errors = token_rewards.detach().double() + gamma * following - exact
    return discounted_sum(errors, response_mask, gamma * lam).to(values.dtype)


def _next_trained(response_mask: Bool[Tensor, "B T"]) -> Int64[Tensor, "B T"]:
    """For each place, the next trained one after it; T where there is none."""
    rows, width = response_mask.shape
    places = torch.arange(width, device=response_mask.device).expand(rows, width)
    trained = torch.where(response_mask, places, width)
    after = torch.cat([trained, trained.new_full((rows, 1), width)], 1)[:, 1:]
    return after.flip(1).cummin(1).values.flip(1) if width else after
