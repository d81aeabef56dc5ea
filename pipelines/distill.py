"""On-policy distillation (arXiv 2306.13649): the student answers, a teacher says at each token what it would say."""

from dataclasses import dataclass

import grpo

from dagrl import Pipeline, WorkerGroup, policy
from dagrl.nodes import (
    generate,
    prompts,
    teacher_topk,
    topk_distill,
    update_policy,
)


@dataclass(frozen=True, kw_only=True)
class Config(grpo.Sampling):
    """The knobs: ``dagrl run pipelines/distill.py --set k=8``."""

    teacher: str = "zoo:expert"  # with the student's vocabulary: `model`
    steps: int = 120
    batch_size: int = 256  # prompts per step
    n: int = 1
    k: int = 16  # of the teacher's likeliest tokens, at each place
    mini_batch_size: int = 0  # rows per optimizer step; 0: all
    eval_every: int = 30


def build(cfg: Config) -> tuple[Pipeline, Pipeline]:
    """One step, and the evaluation on held-out prompts."""
    actor = grpo.actor_group(cfg)
    teacher = WorkerGroup("teacher", policy(cfg.teacher, precision=cfg.precision), pool=actor.pool)

    with Pipeline("distill", steps=cfg.steps) as step:
        batch = prompts(data=cfg.data, test_share=cfg.test_share, batch_size=cfg.batch_size, n=cfg.n)
        rollout = generate(actor, batch, max_new_tokens=cfg.max_new_tokens, temperature=cfg.temperature)
        taught = teacher_topk(teacher, rollout, k=cfg.k)
        update_policy(
            actor, rollout, taught,
            loss=topk_distill(kind="reverse"),
            loss_agg_mode="token-mean",
            mini_batch_size=cfg.mini_batch_size,
            micro_batch_size=cfg.micro_batch_size,
        )  # fmt: skip

    return step, grpo.held_out(cfg, actor)
