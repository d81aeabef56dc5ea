"""DPPO: an update stops where the distribution has moved too far, not where one token's ratio has."""

from typing import Literal, get_args

import torch
from jaxtyping import Bool, Float32
from torch import Tensor

from dagrl.ops.masks import where_masked
from dagrl.ops.ppo_clip import teaches_nothing
from dagrl.ops.score_weights import capped

Divergence = Literal["tv", "kl"]


def dppo_loss(
    logprobs: Float32[Tensor, "B T"],
    behaviour_logprobs: Float32[Tensor, "B T"],
    advantages: Float32[Tensor, "B T"],
    mask: Bool[Tensor, "B T"],
    *,
    divergence: Divergence,
    delta: float,
    delta_high: float | None = None,
    ratio_cap: float | None = None,
) -> tuple[Float32[Tensor, "B T"], Bool[Tensor, "B T"]]:
    """DPPO (arXiv 2602.04879): -M r A at each token, and the tokens whose mask M is 0.

    r = pi / mu of the sampled token, mu the policy that wrote it. M is 0 where the update leads further away (A > 0
    and r > 1, or A < 0 and r < 1) and the divergence D of the Bernoulli distributions (this token or any other)
    exceeds delta: D = |mu - pi| ("tv", the paper's delta 0.15) or
    mu log(mu / pi) + (1 - mu) log((1 - mu) / (1 - pi)) ("kl", 0.05). ``delta_high`` is the limit for A > 0, ``delta``
    unless given. ``ratio_cap`` cuts the weight r off, as verl does at 20; the paper finds that this harms.
    d loss / d logprob = -M min(r, cap) A: a capped token still learns. Differentiable in ``logprobs`` only.

    Degenerate cases: when both log-probs are equal r is exactly 1 and nothing is masked; the "kl" to a probability that
    has become 0 is infinite, to one that has become 1 it is what rounding leaves; A = 0 gives 0, however large r; a
    masked token gives 0 and may hold NaN or inf in every input.

    Raises:
        ValueError: if ``divergence`` is unknown, a delta negative or ``ratio_cap`` not positive.
    """
    delta_high = delta if delta_high is None else delta_high
    if min(delta, delta_high) < 0:
        raise ValueError(f"delta is {delta} and delta_high {delta_high}, but neither may be negative")
    new, behaviour = where_masked(logprobs.detach(), mask), where_masked(behaviour_logprobs.detach(), mask)
    advantage = where_masked(advantages.detach(), mask)
    distance = bernoulli_divergence(behaviour, new, divergence)
    rising = (advantage > 0) & (new > behaviour) & (distance > delta_high)
    falling = (advantage < 0) & (new < behaviour) & (distance > delta)
    stopped = rising | falling
    idle = stopped | teaches_nothing(new - behaviour, advantage)
    weights = capped((new - behaviour).exp(), ratio_cap).masked_fill(idle, 0.0)
    moving = where_masked(logprobs, mask & ~idle)
    surrogate = 1 + moving - moving.detach()  # exactly 1, with the gradient of the log-prob
    return -weights * advantage * surrogate, stopped


def bernoulli_divergence(
    behaviour: Float32[Tensor, "*dims"], new: Float32[Tensor, "*dims"], divergence: Divergence
) -> Float32[Tensor, "*dims"]:
    """How far the probability of one token against all others has moved, from two log-probs: |mu - pi| or KL(mu || pi).

    Both are lower bounds of the divergence over the vocabulary (arXiv 2602.04879, appendix B). 0 log 0 is 0.

    Raises:
        ValueError: if ``divergence`` is unknown.
    """
    if divergence not in get_args(Divergence):
        raise ValueError(f"unknown divergence `{divergence}`: choose one of {', '.join(get_args(Divergence))}")
    if divergence == "tv":
        return (behaviour.exp() - new.exp()).abs()
    # Rounding alone takes a log-prob to 0; an epsilon keeps what is left of the other tokens from being none.
    least = torch.finfo(new.dtype).eps
    mu, rest, rest_new = behaviour.exp(), -behaviour.expm1(), (-new.expm1()).clamp(min=least)
    here = torch.where(mu == 0, 0.0, mu * (behaviour - new))
    elsewhere = torch.where(rest == 0, 0.0, rest * (rest.log() - rest_new.log()))
    return here + elsewhere
