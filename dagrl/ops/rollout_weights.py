"""Rollout correction: importance weights between the trainer and the engine that sampled, bounded, cut and normalised.

The ratio is rho = exp(old_logprobs - rollout_logprobs): the trainer's probability over the sampler's.
"""

from math import inf
from typing import Literal, get_args

import torch
from jaxtyping import Bool, Float32, Float64
from torch import Tensor

from dagrl.ops.kl import KlValue, kl_estimate
from dagrl.ops.masks import masked_mean, masked_sum, row_mean, where_masked

Level = Literal["token", "sequence", "none"]
Outside = Literal["truncate", "mask"]
Over = Literal["token", "row-mean", "row-sum", "row-max"]


def importance_weights(
    old_logprobs: Float32[Tensor, "B T"],
    rollout_logprobs: Float32[Tensor, "B T"],
    mask: Bool[Tensor, "B T"],
    level: Level,
) -> Float64[Tensor, "B T"]:
    """The raw weight of each trained token, 0 at masked ones.

    ``token``: rho of the token, biased over several tokens but of low variance. ``sequence``: the product of rho over
    the row's trained tokens, the same at all of them; unbiased (richardli.xyz/rl-collapse). ``none``: 1.

    Degenerate cases: equal log-probs give exactly 1; a masked token may hold NaN or inf; a NaN at a trained token is
    one in its weight, of whatever level.

    Raises:
        ValueError: if ``level`` is unknown.
    """
    if level not in get_args(Level):
        raise ValueError(f"unknown level `{level}`: choose one of {', '.join(get_args(Level))}")
    log_ratio = log_ratios(old_logprobs, rollout_logprobs, mask)
    if level == "sequence":
        log_ratio = log_ratio.sum(dim=1, keepdim=True).expand(mask.shape)
    if level == "none":
        log_ratio = log_ratio * 0.0  # a NaN stays one
    return where_masked(log_ratio.exp(), mask)


def log_ratios(
    old_logprobs: Float32[Tensor, "B T"], rollout_logprobs: Float32[Tensor, "B T"], mask: Bool[Tensor, "B T"]
) -> Float64[Tensor, "B T"]:
    """Log rho in nats at each trained token, 0 at masked ones, whatever they hold."""
    return where_masked(old_logprobs.detach().double(), mask) - where_masked(rollout_logprobs.detach().double(), mask)


def outside_bounds(
    weights: Float64[Tensor, "B T"], mask: Bool[Tensor, "B T"], *, low: float, high: float
) -> Bool[Tensor, "B T"]:
    """The trained tokens whose raw weight lies below ``low`` or above ``high``."""
    return mask & ((weights < low) | (weights > high))


def bounded_weights(
    weights: Float64[Tensor, "B T"], mask: Bool[Tensor, "B T"], *, low: float, high: float, outside: Outside
) -> Float64[Tensor, "B T"]:
    """Weights within bounds: outside they become the bound ("truncate") or 0 ("mask").

    ``truncate`` with low 0 is truncated importance sampling (TIS, fengyao.notion.site/off-policy-rl); ``mask`` is
    IcePop (arXiv 2510.18855). 0 and inf are no bounds.

    Raises:
        ValueError: if the bounds are not 0 <= low <= high with high above 0, or ``outside`` is unknown.
    """
    if outside not in get_args(Outside):
        raise ValueError(f"unknown `outside={outside}`: choose one of {', '.join(get_args(Outside))}")
    if not (0 <= low <= high and high > 0):
        raise ValueError(f"the bounds of importance weights are {low} and {high}: give 0 <= low <= high, high above 0")
    if outside == "mask":
        return weights.masked_fill(outside_bounds(weights, mask, low=low, high=high), 0.0)
    return where_masked(weights.clamp(low, high), mask)


def accepted_tokens(
    old_logprobs: Float32[Tensor, "B T"],
    rollout_logprobs: Float32[Tensor, "B T"],
    mask: Bool[Tensor, "B T"],
    *,
    kind: KlValue,
    over: Over,
    above: float = inf,
    below: float = -inf,
) -> Bool[Tensor, "B T"]:
    """The trained tokens whose drift lies within [``below``, ``above``] nats; False at masked ones.

    Drift is an estimate of KL(rollout || trainer) from the sampled tokens, by `kl_estimate`: k1 = -log rho,
    k2 = (log rho)^2 / 2, k3 = rho - 1 - log rho. ``over`` takes each token's own, or one for a whole row: the mean,
    sum or largest over its trained tokens; a row is then accepted or rejected as one. verl gives the limits of k1 as
    ratios; here all are in nats.

    Degenerate cases: a drift that is NaN is rejected nowhere: the importance weight, also of level "none", shows it. A
    masked token may hold NaN or inf.

    Raises:
        ValueError: if ``kind`` or ``over`` is unknown.
    """
    if over not in get_args(Over):
        raise ValueError(f"unknown `over={over}`: choose one of {', '.join(get_args(Over))}")
    drift = kl_estimate(rollout_logprobs.detach().double(), old_logprobs.double(), mask, kind)
    match over:
        case "token":
            statistic = drift
        case "row-mean":
            statistic = row_mean(drift, mask).unsqueeze(-1)
        case "row-sum":
            statistic = masked_sum(drift, mask, dim=1).unsqueeze(-1)
        case "row-max":
            statistic = _row_max(drift, mask)
    return mask & ~((statistic > above) | (statistic < below))


def _row_max(values: Float64[Tensor, "B T"], mask: Bool[Tensor, "B T"]) -> Float64[Tensor, "B 1"]:
    """The largest unmasked value of each row; -inf of a row without one, also of one without a place."""
    padded = torch.nn.functional.pad(where_masked(values, mask, -inf), (0, 1), value=-inf)
    return padded.amax(dim=1, keepdim=True)


def normalized_weights(
    weights: Float64[Tensor, "B T"], mask: Bool[Tensor, "B T"], level: Level
) -> Float64[Tensor, "B T"]:
    """Self-normalised weights: divided by their mean over trained tokens, or over rows at level "sequence".

    Weights of 0 count in the mean, so a token-mean of loss * weight over the same tokens is
    sum(loss * weight) / sum(weight): rejected tokens leave the denominator as well. Where every weight is 0 they stay.
    """
    size, keep = weight_units(weights, mask, level)
    mean = masked_mean(size, keep)
    return weights / torch.where(mean == 0, 1.0, mean)


def effective_sample_size(
    weights: Float64[Tensor, "B T"], mask: Bool[Tensor, "B T"], level: Level
) -> tuple[float, int]:
    """(sum w)^2 / sum w^2 (Kong 1992) over trained tokens, or rows at level "sequence", and how many there are.

    It is the number of equally weighted samples of the same variance: all of them where weights are equal, 0 where
    every weight is 0 or there is none.
    """
    size, keep = weight_units(weights, mask, level)
    total, squares = masked_sum(size, keep), masked_sum(size.square(), keep)
    return float(torch.where(squares == 0, 0.0, total.square() / squares)), int(keep.sum())


def weight_units(
    weights: Float64[Tensor, "B T"], mask: Bool[Tensor, "B T"], level: Level
) -> tuple[Float64[Tensor, "*dims"], Bool[Tensor, "*dims"]]:
    """What is weighed: trained tokens, or at level "sequence" the rows that have one, by their mean weight."""
    return (row_mean(weights, mask), mask.any(dim=1)) if level == "sequence" else (weights, mask)
