"""Losses of the policy and the critic, token by token; the engine aggregates them.

A policy loss that reads ``rollout_weights`` (`rollout_correction` writes them) multiplies each token's loss by them.
"""

from dagrl.nodes.losses.penalties import entropy_bonus, kl_loss
from dagrl.nodes.losses.ppo import decoupled_ppo, ppo_clip
from dagrl.nodes.losses.reinforce import cispo, reinforce, topr
from dagrl.nodes.losses.sequence import gmpo, gspo
from dagrl.nodes.losses.supervised import sft_loss
from dagrl.nodes.losses.trust_region import dppo_kl, dppo_tv, dro, sapo
from dagrl.nodes.losses.value import value_clip

__all__ = [
    "cispo",
    "decoupled_ppo",
    "dppo_kl",
    "dppo_tv",
    "dro",
    "entropy_bonus",
    "gmpo",
    "gspo",
    "kl_loss",
    "ppo_clip",
    "reinforce",
    "sapo",
    "sft_loss",
    "topr",
    "value_clip",
]
