"""Built-in nodes and losses: prompts, generate, logprob, reward, advantage, update, report.

A node is one typed function. It never loads a model or starts a process: it asks its role.
"""

from dagrl.nodes.advantage import grpo_advantage
from dagrl.nodes.generate import Rollout, generate
from dagrl.nodes.logprob import old_logprob, ref_logprob
from dagrl.nodes.losses import entropy_bonus, kl_loss, ppo_clip
from dagrl.nodes.prompts import Prompts, prompts
from dagrl.nodes.report import report
from dagrl.nodes.reward import verify
from dagrl.nodes.update import update_policy

__all__ = [
    "Prompts",
    "Rollout",
    "entropy_bonus",
    "generate",
    "grpo_advantage",
    "kl_loss",
    "old_logprob",
    "ppo_clip",
    "prompts",
    "ref_logprob",
    "report",
    "update_policy",
    "verify",
]
