"""RLOO (arXiv 2402.14740): REINFORCE with the mean reward of the other answers as baseline, and KL in the reward."""

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
    report,
    rloo_advantage,
    update_policy,
    verify,
)


@dataclass(frozen=True, kw_only=True)
class Config:
    """The knobs: ``dagrl run pipelines/rloo.py --set n=8``."""

    model: str = "zoo:tiny"  # or a Hugging Face name, or a local folder
    data: str = "zoo:larger"  # or a file of rows, or a folder with one for each split
    test_share: float = 0.0  # part of a single data file that only the evaluation sees
    steps: int = 240
    batch_size: int = 128  # prompts per step
    n: int = 4  # answers per prompt: one group
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

    with Pipeline("rloo", steps=cfg.steps) as step:
        batch = prompts(data=cfg.data, test_share=cfg.test_share, batch_size=cfg.batch_size, n=cfg.n)
        rollout = generate(actor, batch, max_new_tokens=cfg.max_new_tokens, temperature=cfg.temperature)
        reward = verify(batch, rollout)
        old = old_logprob(actor, rollout)
        penalized = kl_penalty(rollout, reward, old, ref_logprob(ref, rollout), beta=cfg.kl)
        advantage = rloo_advantage(rollout, penalized.rename(penalized_rewards="rewards"))
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
