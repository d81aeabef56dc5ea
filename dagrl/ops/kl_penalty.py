"""KL in the reward: what each token pays for leaving the reference, and how the price adapts."""

from typing import NamedTuple

from jaxtyping import Bool, Float32, Float64
from torch import Tensor

from dagrl.ops.advantages.returns import place_on_last_token
from dagrl.ops.kl import KlValue, kl_estimate
from dagrl.ops.masks import masked_sum


class PenalizedRewards(NamedTuple):
    """Rewards less their KL penalty: on tokens, as one number a row, and the KL of each row in nats (summed)."""

    token_rewards: Float32[Tensor, "B T"]
    row_rewards: Float32[Tensor, " B"]
    row_kl: Float64[Tensor, " B"]


def penalized_rewards(
    rewards: Float32[Tensor, " B"],
    logprobs: Float32[Tensor, "B T"],
    ref_logprobs: Float32[Tensor, "B T"],
    mask: Bool[Tensor, "B T"],
    *,
    beta: float,
    kind: KlValue = "k1",
) -> PenalizedRewards:
    """The outcome reward on each row's last trained token, less beta * KL on every trained token (arXiv 1909.08593).

    ``row_rewards`` is reward - beta * (the row's KL), for advantages that take one reward a row. The KL of each token
    is `kl_estimate`'s; the paper's is k1.

    Degenerate cases: a row without a trained token has token rewards 0 and keeps its reward in ``row_rewards``; an
    unscorable (NaN) reward stays NaN, on the last trained token and for the row; masked log-probs may be NaN or inf.

    Raises:
        ValueError: if ``kind`` is unknown, or the KL of a trained token is not finite: the reward would hide it.
    """
    kl = kl_estimate(logprobs.detach(), ref_logprobs, mask, kind)
    if not bool(kl.isfinite().all()):
        what = f"the KL of {int((~kl.isfinite()).sum())} trained tokens is not finite"
        raise ValueError(f"{what}: the policy's or the reference's log-probs are not there")
    row_kl = masked_sum(kl.double(), mask, dim=1)
    token_rewards = place_on_last_token(rewards, mask) - beta * kl
    return PenalizedRewards(token_rewards, (rewards.double() - beta * row_kl).to(rewards.dtype), row_kl)


def adapted_beta(beta: float, measured: float, *, target: float, num_rows: int, horizon: int) -> float:
    """The next coefficient of the adaptive controller (arXiv 1909.08593).

    beta (1 + clip(measured / target - 1, -0.2, 0.2) num_rows / horizon): the coefficient rises while the measured KL
    is above the target. ``measured`` and ``target`` are in one unit; ``horizon`` counts rows. No rows leave the
    coefficient as it is, whatever was measured.

    Raises:
        ValueError: if ``num_rows`` are 5 horizons or more: one step could then take the coefficient to 0 or below,
            and a negative one rewards leaving the reference.
    """
    if num_rows == 0:
        return beta
    if 0.2 * num_rows >= horizon:
        what = f"`horizon` is {horizon}, and a step has {num_rows} rows"
        raise ValueError(f"{what}: it must be above {num_rows / 5:g}, or one step could turn the penalty around")
    error = min(max(measured / target - 1, -0.2), 0.2)
    return beta * (1 + error * num_rows / horizon)
