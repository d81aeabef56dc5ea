"""Advantages for pass@k: what an answer adds to the best of k answers drawn from its group."""

from math import comb

import torch
from jaxtyping import Float, Float64, Int64
from torch import Tensor

from dagrl.ops.advantages.groups import measure_groups


def pass_at_k_advantages(
    rewards: Float[Tensor, " B"], group_ids: Int64[Tensor, " B"], *, k: int, eps: float = 1e-6
) -> Float[Tensor, " B"]:
    """Pass@k training (arXiv 2508.10751, analytical form): one advantage for each row.

    The reward of k answers is that of the best. With m and s the mean and standard deviation of it over all C(n, k)
    subsets of a group of n, A_i = (mean over the subsets with i - m) / (s + eps). For rewards of 0 and 1, f of them 0,
    this is the paper's m = 1 - C(f, k) / C(n, k), s = sqrt(m (1 - m)), A = (1 - m) / s for a right answer and
    (1 - m - C(f - 1, k - 1) / C(n - 1, k - 1)) / s for a wrong one; other rewards follow the same definition, exactly.
    Since every subset is counted, s is no estimate and has no unbiased form: k = 1 is GRPO but for that.

    It is not verl's ``grpo_passk``, which gives the best answer its lead over the second and all others 0.

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
