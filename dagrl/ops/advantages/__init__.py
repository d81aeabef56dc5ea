"""Advantages from rewards: within a group, against a critic, or as whitened returns. Pure tensor math, no columns.

Statistics are float64 inside. A row whose reward is NaN (unscorable) gets 0 and is nobody's baseline.
"""

from dagrl.ops.advantages.gae import gae_advantages
from dagrl.ops.advantages.gdpo import gdpo_advantages
from dagrl.ops.advantages.group_relative import (
    gpg_advantages,
    grpo_advantages,
    maxrl_advantages,
    opo_advantages,
    rloo_advantages,
)
from dagrl.ops.advantages.groups import NO_GROUP, Groups, GroupStatistics, group_statistics, measure_groups
from dagrl.ops.advantages.pass_at_k import grpo_passk_advantages, pass_at_k_advantages
from dagrl.ops.advantages.returns import discounted_sum, place_on_last_token, spread_to_tokens
from dagrl.ops.advantages.token_baseline import otb_advantages, score_norms
from dagrl.ops.advantages.token_rewards import TokenRewards, token_level_rewards
from dagrl.ops.advantages.whitening import whiten

__all__ = [
    "NO_GROUP",
    "GroupStatistics",
    "Groups",
    "TokenRewards",
    "discounted_sum",
    "gae_advantages",
    "gdpo_advantages",
    "gpg_advantages",
    "group_statistics",
    "grpo_advantages",
    "grpo_passk_advantages",
    "maxrl_advantages",
    "measure_groups",
    "opo_advantages",
    "otb_advantages",
    "pass_at_k_advantages",
    "place_on_last_token",
    "rloo_advantages",
    "score_norms",
    "spread_to_tokens",
    "token_level_rewards",
    "whiten",
]
