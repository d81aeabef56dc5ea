"""CISPO (arXiv 2506.13585): importance weights are clipped, and every token keeps its gradient."""

from dataclasses import dataclass

import grpo

from dagrl import Pipeline
from dagrl.nodes import cispo


@dataclass(frozen=True, kw_only=True)
class Config(grpo.Config):
    """The knobs: ``dagrl run pipelines/cispo.py --set n=8``."""

    clip: float = 4.0  # how far a weight may rise above 1; nothing bounds it from below
    kl: float = 0.0  # above 0 brings a reference model
    mini_batch_size: int = 256  # rows per optimizer step: after the first of a step the weights are not 1


def build(cfg: Config) -> tuple[Pipeline, Pipeline]:
    """One step, and the evaluation on held-out prompts."""
    return grpo.group_relative("cispo", cfg, loss=cispo(eps_high=cfg.clip), loss_agg_mode="token-mean")
