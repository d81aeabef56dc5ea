"""ReMax (arXiv 2310.10505): REINFORCE whose baseline is the reward of the greedy answer; KL is part of the reward."""

from dataclasses import dataclass
from typing import Literal

from dagrl import Pipeline, ResourcePool, WorkerGroup, adamw, policy
from dagrl.nodes import (
    generate,
    kl_penalty,
    old_logprob,
    prompts,
    ref_logprob,
    reinforce,
    remax_advantage,
    report,
    update_policy,
    verify,
)


@dataclass(frozen=True, kw_only=True)
class Config:
    """The knobs: ``dagrl run pipelines/remax.py --set n=8``."""

    model: str = "zoo:tiny"  # or a Hugging Face name, or a local folder
    data: str = "zoo:larger"  # or a file of rows, or a folder with one for each split
    test_share: float = 0.0  # part of a single data file that only the evaluation sees
    steps: int = 240
    batch_size: int = 512  # prompts per step
    max_new_tokens: int = 8
    temperature: float = 1.0
    lr: float = 2.5e-4
    kl: float = 0.02  # what a nat of KL costs
    micro_batch_size: int = 0  # rows per forward pass; 0: by the policy's token budget
    precision: Literal["bf16", "fp32"] = "bf16"
    eval_every: int = 60
    workers: int = 0  # processes; 0: on Ray one for each GPU, else for each core


def build(cfg: Config) -> tuple[Pipeline, Pipeline]:
    """One step, and the evaluation on held-out prompts."""
    pool = ResourcePool("main", process_on_nodes=[cfg.workers])
    optimizer = adamw(lr=cfg.lr, warmup=20, decay="linear", min_lr_ratio=0.1, betas=(0.9, 0.99))
    actor = WorkerGroup("actor", policy(cfg.model, optimizer=optimizer, precision=cfg.precision), pool=pool)
    ref = WorkerGroup("ref", policy(cfg.model, precision=cfg.precision), pool=pool)

    with Pipeline("remax", steps=cfg.steps) as step:
        batch = prompts(data=cfg.data, test_share=cfg.test_share, batch_size=cfg.batch_size)
        rollout = generate(actor, batch, max_new_tokens=cfg.max_new_tokens, temperature=cfg.temperature)
        greedy = generate(actor, batch, max_new_tokens=cfg.max_new_tokens, temperature=0.0, name="greedy")
        baseline = verify(batch, greedy, name="verify_greedy").rename(rewards="baseline_rewards")
        old = old_logprob(actor, rollout)
        penalized = kl_penalty(rollout, verify(batch, rollout), old, ref_logprob(ref, rollout), beta=cfg.kl)
        advantage = remax_advantage(rollout, penalized.only("token_rewards"), baseline)
        update_policy(
            actor, rollout, advantage,
            loss=reinforce(),
            loss_agg_mode="seq-mean-token-sum",
            micro_batch_size=cfg.micro_batch_size,
        )  # fmt: skip

    with Pipeline("eval", every=cfg.eval_every) as held_out:
        batch = prompts(data=cfg.data, split="test", test_share=cfg.test_share, batch_size=1024)
        answer = generate(actor, batch, max_new_tokens=cfg.max_new_tokens, temperature=0.0)
        report(batch, verify(batch, answer))

    return step, held_out
