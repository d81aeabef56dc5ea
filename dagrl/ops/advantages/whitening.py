"""Whitening: centred and scaled to a standard deviation of 1 over everything that is not masked."""

from math import inf

import torch
from jaxtyping import Bool, Float
from torch import Tensor

from dagrl.ops.masks import where_masked


def whiten(
    values: Float[Tensor, "*dims"],
    mask: Bool[Tensor, "*dims"],
    *,
    normalize_by_std: bool = True,
    eps: float = 1e-6,
) -> Float[Tensor, "*dims"]:
    """(x - mean) / (std + eps) over all unmasked places together, 0 at masked ones.

    The standard deviation is unbiased; statistics are float64. Without ``normalize_by_std`` the mean is subtracted and
    nothing is divided. verl and OpenRLHF divide by sqrt(variance + 1e-8) instead.

    Degenerate cases: a single value and values that are all equal give exactly 0, and so does an empty mask. A NaN at
    an unmasked place makes all of them NaN.
    """
    if not bool(mask.any()):
        return torch.zeros_like(values)
    exact = values.detach().double()
    highest, lowest = where_masked(exact, mask, -inf).max(), where_masked(exact, mask, inf).min()
    if bool(highest == lowest):
        return torch.zeros_like(values)
    count = mask.sum()
    centred = where_masked(exact - where_masked(exact, mask).sum() / count, mask)
    if normalize_by_std:
        centred = centred / ((centred.square().sum() / (count - 1)).sqrt() + eps)
    return where_masked(centred, mask).to(values.dtype)
