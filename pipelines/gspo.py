"""GSPO (arXiv 2507.18071): GRPO with one importance ratio for each answer in place of one for each token."""

from dataclasses import dataclass

import grpo

from dagrl import Pipeline
from dagrl.nodes import gspo


@dataclass(frozen=True, kw_only=True)
class Config(grpo.Config):
    """The knobs: ``dagrl run pipelines/gspo.py --set n=8``."""

    clip: float = 3e-4  # how far the ratio may fall below 1
    clip_high: float = 4e-4  # and how far rise above it
    kl: float = 0.0  # above 0 brings a reference model
    mini_batch_size: int = 256  # rows per optimizer step: after the first of a step the ratios are not 1


def build(cfg: Config) -> tuple[Pipeline, Pipeline]:
    """One step, and the evaluation on held-out prompts."""
    return grpo.group_relative("gspo", cfg, loss=gspo(eps=cfg.clip, eps_high=cfg.clip_high))
