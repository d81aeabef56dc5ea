"""Choosing tokens: randomness that belongs to a row and a place, and the draw itself.

No generator is kept: a number depends on the row's seed and the token's place alone, so a response
is the same in any batch, order or split, and after a resume.
"""

from __future__ import annotations

import torch
from jaxtyping import Float, Float32, Int64
from torch import Tensor

from dagrl.ops.random import mix, shift_right, wrap

UNIFORM_BITS = 23
_HALF_STEP = 2.0 ** -(UNIFORM_BITS + 1)


# A two-dimensional Weyl sequence (steps of the R2 sequence, both odd) through the finaliser of
# SplitMix64: along either axis it is a SplitMix64 stream.
_SEED_STEP = wrap(0xC13FA9A902A6328F)
_POSITION_STEP = 0x91E10DA5C79E7B1D


def token_uniforms(seeds: Int64[Tensor, " B"], position: int) -> Float32[Tensor, " B"]:
    """Uniform numbers in [0, 1 - 2**-23] for the response tokens at ``position``, by a stateless hash.

    Equal (seed, position) give equal numbers on every device; they are multiples of 2**-23.
    """
    mixed = mix(seeds * _SEED_STEP + wrap(position * _POSITION_STEP))
    return shift_right(mixed, 64 - UNIFORM_BITS).float() * 2.0**-UNIFORM_BITS


def sample_tokens(
    logits: Float[Tensor, "B V"],
    uniforms: Float32[Tensor, " B"],
    temperature: float,
    *,
    top_p: float = 1.0,
    top_k: int = 0,
) -> tuple[Int64[Tensor, " B"], Float32[Tensor, " B"]]:
    """Draw one token a row from softmax(logits / temperature), with its log-prob in the distribution drawn from.

    ``top_k`` above 0 leaves the k likeliest tokens, then ``top_p`` below 1 the fewest of these, likeliest first, whose
    share is at least that (arXiv 1904.09751); what is left is scaled to 1. Of equally likely tokens the first stay.

    The draw inverts the cumulative distribution at the middle of the uniform's step of 2**-23, so a
    token's frequency is off by at most 2**-23 and a token of probability 0 is never drawn. Temperature 0
    takes the likeliest token (the first of equals), with its log-prob at temperature 1. A row whose
    logits hold NaN gets some token and the log-prob NaN.
    """
    scores = logits.float()
    if temperature == 0:
        best, tokens = scores.max(-1)
        return tokens, best - scores.logsumexp(-1)
    probs = (scores if temperature == 1 else scores / temperature).softmax(-1)
    if top_p < 1 or 0 < top_k < probs.shape[1]:
        probs = _likeliest(probs, top_p, top_k or probs.shape[1])
    # torch adds up in float64 on the CPU whatever the result's dtype, so there a float32 sum is exact to its
    # last bit and monotone. Elsewhere a parallel float32 sum over a large vocabulary is neither.
    cdf = probs.cumsum(-1, dtype=torch.float32 if probs.device.type == "cpu" else torch.float64)
    total = cdf[:, -1:]
    # Rounding may lift the target to the total, past every token: stay below it. The clamp is for NaN.
    target = torch.minimum((uniforms[:, None] + _HALF_STEP) * total, total * (1 - _HALF_STEP))
    tokens = torch.searchsorted(cdf, target, right=True).clamp_(max=probs.shape[1] - 1)
    # softmax and log_softmax on the CPU add up in float32, which 150,000 tokens put off by 2e-4: the exact
    # total makes that good. Small probabilities keep their relative precision, so the log is exact too.
    return tokens[:, 0], (probs.gather(1, tokens) / total).log().float()[:, 0]


def _likeliest(probs: Float32[Tensor, "B V"], top_p: float, top_k: int) -> Float32[Tensor, "B V"]:
    """The probabilities of the tokens that stay, 0 for the others."""
    ordered, tokens = probs.sort(stable=True, dim=-1, descending=True)
    ordered[:, top_k:] = 0
    if top_p < 1:
        before = ordered.double().cumsum(-1) - ordered
        ordered = ordered.masked_fill(before >= top_p * ordered.double().sum(-1, keepdim=True), 0)
    return torch.zeros_like(probs).scatter(1, tokens, ordered)
