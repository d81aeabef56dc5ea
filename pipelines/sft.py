"""Supervised fine-tuning (arXiv 2203.02155, step 1): made from nothing, a model that answers as `zoo:tiny` does."""

from dataclasses import dataclass

import grpo

from dagrl import Pipeline, ResourcePool, WorkerGroup, adamw, policy
from dagrl.nodes import demonstrations, prompts, sft_loss, update_policy


@dataclass(frozen=True, kw_only=True)
class Config(grpo.Training):
    """The knobs: ``dagrl run pipelines/sft.py --set model=runs/other/model --set from_scratch=False``."""

    from_scratch: bool = True  # keep the model's config and tokenizer, and begin with random weights
    split: str = "sft"  # of the data, whose rows have answers: here easy pairs alone
    steps: int = 120
    batch_size: int = 256  # prompts per step
    lr: float = 1e-3
    mini_batch_size: int = 0  # rows per optimizer step; 0: all
    eval_every: int = 30


def build(cfg: Config) -> tuple[Pipeline, Pipeline]:
    """One step on demonstrations, and the evaluation on held-out prompts."""
    pool = ResourcePool("main", process_on_nodes=[cfg.workers])
    optimizer = adamw(lr=cfg.lr, warmup=50, betas=(0.9, 0.98), weight_decay=0.01)
    model = policy(
        cfg.model, from_scratch=cfg.from_scratch, optimizer=optimizer, precision=cfg.precision, rollout=cfg.rollout
    )  # fmt: skip
    actor = WorkerGroup("actor", model, pool=pool)

    with Pipeline("sft", steps=cfg.steps) as step:
        batch = prompts(data=cfg.data, split=cfg.split, test_share=cfg.test_share, batch_size=cfg.batch_size)
        update_policy(
            actor, demonstrations(actor, batch),
            loss=sft_loss(),
            mini_batch_size=cfg.mini_batch_size,
            micro_batch_size=cfg.micro_batch_size,
        )  # fmt: skip

    return step, grpo.held_out(cfg, actor)
