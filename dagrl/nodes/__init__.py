"""Built-in nodes and losses: prompts, generate, logprob, reward, shaping, KL penalty, advantage, correction, update.

A node is one typed function. It never loads a model or starts a process: it asks its role.
"""

from dagrl.nodes.advantage import grpo_advantage, rloo_advantage
from dagrl.nodes.filters import short_prompts
from dagrl.nodes.generate import Rollout, generate
from dagrl.nodes.kl_penalty import KlCoefficient, KlPenalized, adaptive_kl_penalty, kl_penalty
from dagrl.nodes.logprob import old_logprob, ref_logprob
from dagrl.nodes.losses import (
    cispo,
    decoupled_ppo,
    dppo_kl,
    dppo_tv,
    dro,
    entropy_bonus,
    gmpo,
    gspo,
    kl_loss,
    ppo_clip,
    reinforce,
    sapo,
    topr,
    value_clip,
)
from dagrl.nodes.prompts import Prompts, prompts
from dagrl.nodes.report import report
from dagrl.nodes.reward import verify
from dagrl.nodes.reward_function import reward_function
from dagrl.nodes.rollout_correction import low_drift, rollout_correction
from dagrl.nodes.shaping import format_reward, length_penalty, sum_rewards
from dagrl.nodes.update import update_policy

__all__ = [
    "KlCoefficient",
    "KlPenalized",
    "Prompts",
    "Rollout",
    "adaptive_kl_penalty",
    "cispo",
    "decoupled_ppo",
    "dppo_kl",
    "dppo_tv",
    "dro",
    "entropy_bonus",
    "format_reward",
    "generate",
    "gmpo",
    "grpo_advantage",
    "gspo",
    "kl_loss",
    "kl_penalty",
    "length_penalty",
    "low_drift",
    "old_logprob",
    "ppo_clip",
    "prompts",
    "ref_logprob",
    "reinforce",
    "report",
    "reward_function",
    "rloo_advantage",
    "rollout_correction",
    "sapo",
    "short_prompts",
    "sum_rewards",
    "topr",
    "update_policy",
    "value_clip",
    "verify",
]
