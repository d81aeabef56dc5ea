"""Numbers on tokens: a row's value spread over them or put on the last one, and discounted sums along a row."""

import torch
from jaxtyping import Bool, Float, Float64
from torch import Tensor

from dagrl.ops.masks import where_masked


def spread_to_tokens(per_row: Float[Tensor, " B"], response_mask: Bool[Tensor, "B T"]) -> Float[Tensor, "B T"]:
    """Each row's value at each of its unmasked tokens, 0 at masked ones."""
    return where_masked(per_row.unsqueeze(-1).expand(response_mask.shape), response_mask)


def place_on_last_token(per_row: Float[Tensor, " B"], response_mask: Bool[Tensor, "B T"]) -> Float[Tensor, "B T"]:
    """Each row's value on its last trained token, 0 elsewhere; a row without a trained token has no place for it."""
    trained_from_here = response_mask.long().flip(-1).cumsum(-1).flip(-1)
    return spread_to_tokens(per_row, response_mask & (trained_from_here == 1))


def discounted_sum(
    values: Float[Tensor, "B T"], response_mask: Bool[Tensor, "B T"], decay: float
) -> Float64[Tensor, "B T"]:
    """s_t = x_t + decay * s of the next trained token, 0 at masked ones; with rewards this is the reward-to-go.

    Masked tokens (tool output, padding) neither add nor decay: the sum passes through them. Float64. One pass over T,
    all rows at once.
    """
    kept = where_masked(values.detach().double(), response_mask).T.contiguous()  # [T B]: a step reads one stretch
    decays = torch.where(response_mask, decay, 1.0).double().T.contiguous()
    sums = torch.zeros_like(kept)
    running = torch.zeros_like(kept[:1].sum(0))
    for place in reversed(range(len(kept))):
        running = torch.addcmul(kept[place], decays[place], running, out=sums[place])
    return where_masked(sums.T, response_mask)
