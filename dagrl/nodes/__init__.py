"""Built-in nodes and losses: prompts, generate, logprob, values, reward, shaping, advantage, update, report.

A node is one typed function. It never loads a model or starts a process: it asks its role.
"""

from dagrl.nodes.advantage import grpo_advantage, rloo_advantage
from dagrl.nodes.filters import short_prompts
from dagrl.nodes.generate import Rollout, generate
from dagrl.nodes.logprob import old_logprob, ref_logprob
from dagrl.nodes.losses import entropy_bonus, gspo, kl_loss, ppo_clip
from dagrl.nodes.prompts import Prompts, prompts
from dagrl.nodes.report import report
from dagrl.nodes.reward import verify
from dagrl.nodes.reward_function import reward_function
from dagrl.nodes.reward_model import reward_model_score
from dagrl.nodes.shaping import format_reward, length_penalty, sum_rewards
from dagrl.nodes.update import update_policy
from dagrl.nodes.update_critic import update_critic
from dagrl.nodes.value_loss import value_clip
from dagrl.nodes.values import values

__all__ = [
    "Prompts",
    "Rollout",
    "entropy_bonus",
    "format_reward",
    "generate",
    "grpo_advantage",
    "gspo",
    "kl_loss",
    "length_penalty",
    "old_logprob",
    "ppo_clip",
    "prompts",
    "ref_logprob",
    "report",
    "reward_function",
    "reward_model_score",
    "rloo_advantage",
    "short_prompts",
    "sum_rewards",
    "update_critic",
    "update_policy",
    "value_clip",
    "values",
    "verify",
]
