"""Nodes that turn rewards into advantages; the formulas are in `dagrl.ops.advantages`.

`group` compares answers to one prompt, `normalised` needs the whole batch, `reinforce` and `gae` look at each row,
`token_baseline` at each token of a group; `rewards` brings several rewards, or rewards on tokens, into their form.
"""

from dagrl.nodes.advantage.gae import AdvantagesAndReturns, gae_advantage
from dagrl.nodes.advantage.group import (
    grpo_advantage,
    grpo_passk_advantage,
    maxrl_advantage,
    opo_advantage,
    pass_at_k_advantage,
    rloo_advantage,
)
from dagrl.nodes.advantage.normalised import (
    gdpo_advantage,
    gpg_advantage,
    reinforce_pp_advantage,
    reinforce_pp_baseline_advantage,
    whiten_advantages,
)
from dagrl.nodes.advantage.reinforce import reinforce_advantage, remax_advantage
from dagrl.nodes.advantage.rewards import place_rewards, stack_rewards
from dagrl.nodes.advantage.token_baseline import otb_advantage

__all__ = [
    "AdvantagesAndReturns",
    "gae_advantage",
    "gdpo_advantage",
    "gpg_advantage",
    "grpo_advantage",
    "grpo_passk_advantage",
    "maxrl_advantage",
    "opo_advantage",
    "otb_advantage",
    "pass_at_k_advantage",
    "place_rewards",
    "reinforce_advantage",
    "reinforce_pp_advantage",
    "reinforce_pp_baseline_advantage",
    "remax_advantage",
    "rloo_advantage",
    "stack_rewards",
    "whiten_advantages",
]
