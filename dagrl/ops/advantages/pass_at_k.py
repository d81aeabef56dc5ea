"""Advantages for pass@k: what an answer adds to the best of k answers drawn from its group, or of all of it."""

from math import comb, inf

import torch
from jaxtyping import Float, Float64, Int64
from torch import Tensor

from dagrl.ops.advantages.groups import measure_groups
from dagrl.ops.masks import where_masked


def pass_at_k_advantages(
    rewards: Float[Tensor, " B"], group_ids: Int64[Tensor, " B"], *, k: int, eps: float = 1e-6
) -> Float[Tensor, " B"]:
    """Pass@k training (arXiv 2508.10751, analytical form): one advantage for each row.

    The reward of k answers is that of the best. With m and s the mean and standard deviation of it over all C(n, k)
    subsets of a group of n, A_i = (mean over the subsets with i - m) / (s + eps). For rewards of 0 and 1, f of them 0,
    this is the paper's m = 1 - C(f, k) / C(n, k), s = sqrt(m (1 - m)), A = (1 - m) / s for a right answer and
    (1 - m - C(f - 1, k - 1) / C(n - 1, k - 1)) / s for a wrong one; other rewards follow the same definition, exactly.
    Since every subset is counted, s is no estimate and has no unbiased form: k = 1 is GRPO but for that.

    verl's ``grpo_passk`` is another estimator: `grpo_passk_advantages`.

    Degenerate cases: a group of k or fewer scorable rows has one subset at most and gives 0; others are those of
    `grpo_advantages`.
    """
    groups = measure_groups(rewards, group_ids)
    exact = rewards.detach().double()
    advantages = torch.zeros_like(exact)
    for group in groups.of_row[groups.informative].unique():
        rows = (groups.of_row == group) & groups.scorable
        if int(rows.sum()) > k:
            advantages[rows] = _of_group(exact[rows], k, eps)
    return advantages.to(rewards.dtype)


def grpo_passk_advantages(
    rewards: Float[Tensor, " B"],
    group_ids: Int64[Tensor, " B"],
    *,
    normalize_by_std: bool = True,
    eps: float = 1e-6,
) -> Float[Tensor, " B"]:
    """Pass@k by the best answer alone (arXiv 2503.19595, verl's ``grpo_passk``): one advantage for each row.

    k is the size of the group. The best answer gets A = (r_best - r_second) / (std(group) + eps), what the group's
    best would lack without it, and all others 0. The standard deviation is unbiased; without ``normalize_by_std``
    nothing is divided, as in the paper.

    Degenerate cases: where two are best, the lead is 0 and so is the group; others are those of `grpo_advantages`.
    """
    groups = measure_groups(rewards, group_ids)
    exact = rewards.detach().double()
    best = groups.scorable & (exact == groups.highest[groups.of_row])
    below = where_masked(exact, groups.scorable & ~best, -inf)
    second = torch.full_like(groups.highest, -inf).scatter_reduce(0, groups.of_row, below, "amax")
    lead = groups.highest - second
    if normalize_by_std:
        lead = lead / (groups.std + eps)
    alone = (groups.total(best.double()) == 1)[groups.of_row]
    return where_masked(lead[groups.of_row], best & alone & groups.informative).to(rewards.dtype)


def _of_group(rewards: Float64[Tensor, " n"], k: int, eps: float) -> Float64[Tensor, " n"]:
    """Advantages of one group. Subsets are counted by the place of their best in ascending order."""
    ordered, order = rewards.sort()
    n, places = len(ordered), range(len(ordered))
    best_here = ordered.new_tensor([comb(place, k - 1) / comb(n, k) for place in places])
    mean = (best_here * ordered).sum()
    std = (best_here * (ordered - mean).square()).sum().sqrt()
    advantages = torch.empty_like(ordered)
    advantages[order] = (_best_with(ordered, k) - mean) / (std + eps)
    return advantages


def _best_with(ordered: Float64[Tensor, " n"], k: int) -> Float64[Tensor, " n"]:
    """For each place in ascending order, the mean best reward of the subsets that contain it."""
    n, places = len(ordered), range(len(ordered))
    subsets = comb(n - 1, k - 1)
    itself = ordered.new_tensor([comb(place, k - 1) / subsets for place in places])
    higher = ordered.new_tensor([comb(place - 1, k - 2) / subsets if place and k > 1 else 0.0 for place in places])
    beaten = (higher * ordered).flip(0).cumsum(0).flip(0) - higher * ordered
    return itself * ordered + beaten
