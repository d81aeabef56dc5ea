"""Dr. GRPO (arXiv 2503.20783): GRPO without its two biases: no division by a group's spread, nor by a row's length."""

from dataclasses import dataclass
from functools import partial

import grpo

from dagrl import Pipeline
from dagrl.nodes import grpo_advantage, ppo_clip


@dataclass(frozen=True, kw_only=True)
class Config(grpo.Config):
    """The knobs: ``dagrl run pipelines/dr_grpo.py --set n=8``."""

    kl: float = 0.0  # above 0 brings a reference model


def build(cfg: Config) -> tuple[Pipeline, Pipeline]:
    """One step, and the evaluation on held-out prompts."""
    return grpo.group_relative(
        "dr_grpo", cfg,
        loss=ppo_clip(eps=cfg.clip),
        advantage=partial(grpo_advantage, normalize_by_std=False),
        loss_agg_mode="seq-mean-token-sum-norm",
        norm_length=cfg.max_new_tokens,
    )  # fmt: skip
