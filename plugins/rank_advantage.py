"""An advantage of one's own: only the order of a group's rewards counts, not their size."""

import torch
from jaxtyping import Bool, Float32, Int64
from torch import Tensor

from dagrl import node


@node(writes="advantages", split="group")
def rank_advantage(
    rewards: Float32[Tensor, " B"], group_ids: Int64[Tensor, " B"], response_mask: Bool[Tensor, "B T"]
) -> Float32[Tensor, "B T"]:
    """The share of the group's other rows that a row beats, less the share that beats it: between -1 and 1.

    A group of one gets 0; an unscorable (NaN) reward gets 0 and is compared with nobody.
    """
    same_group = group_ids.unsqueeze(0) == group_ids.unsqueeze(1)
    gaps = rewards.unsqueeze(1) - rewards.unsqueeze(0)  # NaN for a pair that cannot be compared
    comparable = same_group & ~gaps.isnan()
    wins = torch.where(comparable, gaps.sign(), 0.0).sum(1)
    others = (comparable.sum(1) - 1).clamp(min=1)
    return (wins / others).unsqueeze(-1) * response_mask
