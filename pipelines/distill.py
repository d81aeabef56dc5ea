"""On-policy distillation (arXiv 2306.13649): the student answers, a teacher says at each token what it would say."""

from dataclasses import dataclass
from typing import Literal

from dagrl import Pipeline, ResourcePool, WorkerGroup, adamw, policy
from dagrl.nodes import (
    generate,
    prompts,
    report,
    teacher_topk,
    topk_distill,
    update_policy,
    verify,
)


@dataclass(frozen=True, kw_only=True)
class Config:
    """The knobs: ``dagrl run pipelines/distill.py --set k=8``."""

    model: str = "zoo:tiny"  # the student: or a Hugging Face name, or a local folder
    teacher: str = "zoo:expert"  # with the student's vocabulary
    data: str = "zoo:larger"  # or a file of rows, or a folder with one for each split
    test_share: float = 0.0  # part of a single data file that only the evaluation sees
    steps: int = 120
    batch_size: int = 256  # prompts per step
    max_new_tokens: int = 8
    temperature: float = 1.0
    lr: float = 2.5e-4
    k: int = 16  # of the teacher's likeliest tokens, at each place
    mini_batch_size: int = 0  # rows per optimizer step; 0: all
    micro_batch_size: int = 0  # rows per forward pass; 0: by the policy's token budget
    precision: Literal["bf16", "fp32"] = "bf16"
    eval_every: int = 30
    workers: int = 0  # processes; 0: on Ray one for each GPU, else for each core


def build(cfg: Config) -> tuple[Pipeline, Pipeline]:
    """One step, and the evaluation on held-out prompts."""
    pool = ResourcePool("main", process_on_nodes=[cfg.workers])
    optimizer = adamw(lr=cfg.lr, warmup=20, decay="linear", min_lr_ratio=0.1, betas=(0.9, 0.99))
    actor = WorkerGroup("actor", policy(cfg.model, optimizer=optimizer, precision=cfg.precision), pool=pool)
    teacher = WorkerGroup("teacher", policy(cfg.teacher, precision=cfg.precision), pool=pool)

    with Pipeline("distill", steps=cfg.steps) as step:
        batch = prompts(data=cfg.data, test_share=cfg.test_share, batch_size=cfg.batch_size)
        rollout = generate(actor, batch, max_new_tokens=cfg.max_new_tokens, temperature=cfg.temperature)
        taught = teacher_topk(teacher, rollout, k=cfg.k)
        update_policy(
            actor, rollout, taught,
            loss=topk_distill(kind="reverse"),
            loss_agg_mode="token-mean",
            mini_batch_size=cfg.mini_batch_size,
            micro_batch_size=cfg.micro_batch_size,
        )  # fmt: skip

    with Pipeline("eval", every=cfg.eval_every) as held_out:
        batch = prompts(data=cfg.data, split="test", test_share=cfg.test_share, batch_size=1024)
        answer = generate(actor, batch, max_new_tokens=cfg.max_new_tokens, temperature=0.0)
        report(batch, verify(batch, answer))

    return step, held_out
