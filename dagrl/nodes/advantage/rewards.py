"""Rewards brought into the form that an advantage reads: several side by side, or on tokens."""

import torch
from jaxtyping import Bool, Float32
from torch import Tensor

from dagrl.graph import node
from dagrl.ops.advantages import place_on_last_token
from dagrl.ops.masks import where_masked


@node(writes="reward_components")
def stack_rewards(
    rewards: Float32[Tensor, " B"], reward_components: Float32[Tensor, "B K"] | None = None
) -> Float32[Tensor, "B K"]:
    """The rewards as one more component, behind those that are there already.

    ``stack_rewards(form, stack_rewards(correct))`` has two, ``correct`` first. `gdpo_advantage` normalises each by
    itself. A component stays unscorable (NaN) where it was.
    """
    own = rewards.unsqueeze(1)
    return own.clone() if reward_components is None else torch.cat([reward_components, own], 1)


@node(writes="token_rewards")
def place_rewards(
    rewards: Float32[Tensor, " B"],
    response_mask: Bool[Tensor, "B T"],
    token_rewards: Float32[Tensor, "B T"] | None = None,
) -> Float32[Tensor, "B T"]:
    """Each row's reward on its last trained token, added to ``token_rewards`` where there are some.

    So process rewards and an outcome reward become one. An unscorable (NaN) reward makes that token NaN, and a row
    without a trained token has no place for its reward.
    """
    placed = place_on_last_token(rewards, response_mask)
    return placed if token_rewards is None else placed + where_masked(token_rewards, response_mask)
