"""GDPO: several rewards, each normalised in its group before they are added."""

import torch
from jaxtyping import Float, Int64
from torch import Tensor

from dagrl.ops.advantages.group_relative import grpo_advantages
from dagrl.ops.advantages.groups import measure_groups
from dagrl.ops.masks import masked_sum, where_masked


def gdpo_advantages(
    components: Float[Tensor, "B K"],
    group_ids: Int64[Tensor, " B"],
    weights: Float[Tensor, " K"],
    *,
    eps: float = 1e-6,
) -> Float[Tensor, " B"]:
    """GDPO (arXiv 2601.05242): A = s / (std(s) + eps) with s = sum_k w_k GRPO(r_k), one advantage for each row.

    Each component is normalised by its group's mean and unbiased standard deviation, so none drowns another by its
    size; the weighted sum is divided by its unbiased standard deviation over the rows of the whole batch. The paper
    also subtracts the mean over the batch, which is 0, since the mean of every group is: here it is not computed, as
    its rounding would teach something of groups from which nothing is to be learned. (verl normalises over tokens,
    which lets long responses count more, and whose mean is not 0.)

    Degenerate cases: a component that is equal in all of a group adds 0 there, and a group in which all of them are
    gets exactly 0. A row with a NaN in any component is
    unscorable: it gets 0 and leaves its group and the batch, as does one without a scorable companion and one of
    `NO_GROUP`.
    """
    exact = components.detach().double()
    unscorable = exact.isnan().any(1)
    exact = exact.masked_fill(unscorable.unsqueeze(1), torch.nan)
    normed = [grpo_advantages(component, group_ids, eps=eps) for component in exact.unbind(1)]
    summed = (torch.stack(normed, 1) * weights.double()).sum(1)
    groups = measure_groups(exact[:, 0], group_ids)
    compared = groups.scorable & (groups.count >= 2)[groups.of_row]
    variance = masked_sum(summed.square(), compared) / (compared.sum() - 1).clamp(min=1)
    return where_masked(summed / (variance.sqrt() + eps), compared).to(components.dtype)
