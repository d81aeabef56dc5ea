"""DAPO (arXiv 2503.14476): draw prompts until enough groups differ in reward, and clip rises less than falls.

Unlike GRPO it has no reference model, weighs every token alike, and punishes answers that come near the length limit.
"""

from dataclasses import dataclass
from typing import Literal

from dagrl import Pipeline, ResourcePool, WorkerGroup, adamw, policy, refill
from dagrl.nodes import (
    generate,
    grpo_advantage,
    length_penalty,
    mixed_groups,
    old_logprob,
    ppo_clip,
    prompts,
    report,
    update_policy,
    verify,
)


@dataclass(frozen=True, kw_only=True)
class Config:
    """The knobs: ``dagrl run pipelines/dapo.py --set groups=32``."""

    model: str = "zoo:tiny"  # or a Hugging Face name, or a local folder
    data: str = "zoo:larger"  # or a file of rows, or a folder with one for each split
    test_share: float = 0.0  # part of a single data file that only the evaluation sees
    steps: int = 120
    groups: int = 64  # groups that a step trains on
    batch_size: int = 96  # prompts per round
    max_rounds: int = 4
    n: int = 4  # answers per prompt: one group
    max_new_tokens: int = 8
    temperature: float = 1.0
    overlong_buffer: int = 4  # the last tokens before the limit, in which the punishment grows
    lr: float = 2.5e-4
    clip_low: float = 0.2
    clip_high: float = 0.28
    mini_batch_size: int = 128  # rows per optimizer step: from the second of a step on the clip can act
    micro_batch_size: int = 0  # rows per forward pass; 0: by the policy's token budget
    precision: Literal["bf16", "fp32"] = "bf16"
    eval_every: int = 30
    workers: int = 0  # processes; 0: on Ray one for each GPU, else for each core


def build(cfg: Config) -> tuple[Pipeline, Pipeline]:
    """One DAPO step, and the evaluation on held-out prompts."""
    pool = ResourcePool("main", process_on_nodes=[cfg.workers])
    optimizer = adamw(lr=cfg.lr, warmup=20, decay="linear", min_lr_ratio=0.1, betas=(0.9, 0.99))
    actor = WorkerGroup("actor", policy(cfg.model, optimizer=optimizer, precision=cfg.precision), pool=pool)

    with Pipeline("dapo", steps=cfg.steps) as step:
        with refill(groups=cfg.groups, max_rounds=cfg.max_rounds):
            batch = prompts(data=cfg.data, test_share=cfg.test_share, batch_size=cfg.batch_size, n=cfg.n)
            rollout = generate(actor, batch, max_new_tokens=cfg.max_new_tokens, temperature=cfg.temperature)
            correct = verify(batch, rollout)
            mixed_groups(correct)
        # Half of what a right answer is worth, as in the paper: right and long stays above wrong and short.
        limits = {"max_length": cfg.max_new_tokens, "buffer": cfg.overlong_buffer}
        reward = length_penalty(correct, rollout, penalty=0.5, **limits)
        update_policy(
            actor, rollout, old_logprob(actor, rollout), grpo_advantage(rollout, reward),
            loss=ppo_clip(eps=cfg.clip_low, eps_high=cfg.clip_high),
            loss_agg_mode="token-mean",
            mini_batch_size=cfg.mini_batch_size,
            micro_batch_size=cfg.micro_batch_size,
        )  # fmt: skip

    with Pipeline("eval", every=cfg.eval_every) as held_out:
        batch = prompts(data=cfg.data, split="test", test_share=cfg.test_share, batch_size=1024)
        answer = generate(actor, batch, max_new_tokens=cfg.max_new_tokens, temperature=0.0)
        report(batch, verify(batch, answer))

    return step, held_out
