"""Rewards on tokens, from one reward for each row or from rewards that are there already."""

from typing import NamedTuple

from jaxtyping import Bool, Float, Float64
from torch import Tensor

from dagrl.ops.advantages.returns import place_on_last_token
from dagrl.ops.masks import where_masked


class TokenRewards(NamedTuple):
    """Rewards on trained tokens, 0 elsewhere and in unscorable rows, and which rows are scorable."""

    rewards: Float64[Tensor, "B T"]
    scorable: Bool[Tensor, " B"]


def token_level_rewards(
    response_mask: Bool[Tensor, "B T"],
    rewards: Float[Tensor, " B"] | None,
    token_rewards: Float[Tensor, "B T"] | None,
) -> TokenRewards:
    """The rewards of a row on its tokens: an outcome on the last trained token, or ``token_rewards`` as they are.

    ``token_rewards`` are the whole reward, outcome included, as verl's ``token_level_rewards`` are; those at masked
    tokens are dropped. A row is unscorable if its reward, or one at a trained token, is NaN.

    Raises:
        ValueError: if both are given or none is.
    """
    if rewards is not None and token_rewards is None:
        scorable = ~rewards.isnan()
        placed = place_on_last_token(rewards.detach().double(), response_mask)
    elif token_rewards is not None and rewards is None:
        placed = where_masked(token_rewards.detach().double(), response_mask)
        scorable = ~placed.sum(1).isnan()
    else:
        given = "neither" if rewards is None else "both"
        raise ValueError(f"{given} of `rewards` and `token_rewards` given: pass one; token rewards include the outcome")
    return TokenRewards(where_masked(placed, scorable.unsqueeze(1).expand(placed.shape)), scorable)
