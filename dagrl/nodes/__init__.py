"""Built-in nodes and losses: prompts, generate, logprob, values, reward, shaping, KL penalty, advantage, update.

A node is one typed function. It never loads a model or starts a process: it asks its role.
"""

from dagrl.nodes.advantage import (
    AdvantagesAndReturns,
    gae_advantage,
    gdpo_advantage,
    gpg_advantage,
    grpo_advantage,
    grpo_passk_advantage,
    maxrl_advantage,
    opo_advantage,
    otb_advantage,
    pass_at_k_advantage,
    place_rewards,
    reinforce_advantage,
    reinforce_pp_advantage,
    reinforce_pp_baseline_advantage,
    remax_advantage,
    rloo_advantage,
    stack_rewards,
    whiten_advantages,
)
from dagrl.nodes.cov_losses import clip_cov, kl_cov
from dagrl.nodes.demonstrations import Demonstrations, demonstrations
from dagrl.nodes.distill import TeacherLogProbs, reverse_kl_distill, teacher_topk, topk_distill
from dagrl.nodes.filters import mixed_groups, short_prompts
from dagrl.nodes.generate import Rollout, generate
from dagrl.nodes.gym_score import gym_score
from dagrl.nodes.kl_penalty import KlCoefficient, KlPenalized, adaptive_kl_penalty, kl_penalty
from dagrl.nodes.logprob import old_logprob, old_logprob_squares, ref_logprob
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
    sft_loss,
    topr,
    value_clip,
)
from dagrl.nodes.math_verify import math_verify
from dagrl.nodes.prompts import Prompts, prompts
from dagrl.nodes.report import report
from dagrl.nodes.reward import verify
from dagrl.nodes.reward_function import reward_function
from dagrl.nodes.reward_model import reward_model_score
from dagrl.nodes.rollout_correction import low_drift, rollout_correction
from dagrl.nodes.shaping import format_reward, length_penalty, sum_rewards
from dagrl.nodes.update import update_policy
from dagrl.nodes.update_critic import update_critic
from dagrl.nodes.values import values

__all__ = [
    "AdvantagesAndReturns",
    "Demonstrations",
    "KlCoefficient",
    "KlPenalized",
    "Prompts",
    "Rollout",
    "TeacherLogProbs",
    "adaptive_kl_penalty",
    "cispo",
    "clip_cov",
    "decoupled_ppo",
    "demonstrations",
    "dppo_kl",
    "dppo_tv",
    "dro",
    "entropy_bonus",
    "format_reward",
    "gae_advantage",
    "gdpo_advantage",
    "generate",
    "gmpo",
    "gpg_advantage",
    "grpo_advantage",
    "grpo_passk_advantage",
    "gspo",
    "gym_score",
    "kl_cov",
    "kl_loss",
    "kl_penalty",
    "length_penalty",
    "low_drift",
    "math_verify",
    "maxrl_advantage",
    "mixed_groups",
    "old_logprob",
    "old_logprob_squares",
    "opo_advantage",
    "otb_advantage",
    "pass_at_k_advantage",
    "place_rewards",
    "ppo_clip",
    "prompts",
    "ref_logprob",
    "reinforce",
    "reinforce_advantage",
    "reinforce_pp_advantage",
    "reinforce_pp_baseline_advantage",
    "remax_advantage",
    "report",
    "reverse_kl_distill",
    "reward_function",
    "reward_model_score",
    "rloo_advantage",
    "rollout_correction",
    "sapo",
    "sft_loss",
    "short_prompts",
    "stack_rewards",
    "sum_rewards",
    "teacher_topk",
    "topk_distill",
    "topr",
    "update_critic",
    "update_policy",
    "value_clip",
    "values",
    "verify",
    "whiten_advantages",
]
