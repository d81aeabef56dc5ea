"""GRPO (arXiv 2402.03300): sample a group of answers to each prompt, and learn from how they differ in reward."""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Literal

from dagrl import Edge, LossTerms, Pipeline, ResourcePool, WorkerGroup, adamw, policy
from dagrl.nodes import (
    generate,
    grpo_advantage,
    kl_loss,
    old_logprob,
    ppo_clip,
    prompts,
    ref_logprob,
    report,
    update_policy,
    verify,
)


@dataclass(frozen=True, kw_only=True)
class Training:
    """The knobs that every pipeline of this folder has."""

    model: str = "zoo:tiny"  # or a Hugging Face name, or a local folder
    data: str = "zoo:larger"  # or a file of rows, or a folder with one for each split
    test_share: float = 0.0  # part of a single data file that only the evaluation sees
    steps: int = 240
    batch_size: int = 128  # prompts per step
    max_new_tokens: int = 8
    lr: float = 2.5e-4
    micro_batch_size: int = 0  # rows per forward pass; 0: by the models' token budgets
    precision: Literal["bf16", "fp32"] = "bf16"
    rollout: Literal["hf", "vllm"] = "hf"  # hf is faster for tiny models on a CPU, vllm for all others
    eval_every: int = 60
    workers: int = 0  # processes; 0: on Ray one for each GPU, else for each core


@dataclass(frozen=True, kw_only=True)
class Sampling(Training):
    """And those of the ones that learn from answers of the model's own."""

    n: int = 4  # answers per prompt: one group
    temperature: float = 1.0


@dataclass(frozen=True, kw_only=True)
class Config(Sampling):
    """The knobs: ``dagrl run pipelines/grpo.py --set n=8``."""

    clip: float = 0.2  # acts from the second mini-batch of a step on
    kl: float = 0.02  # 0 drops the reference model
    mini_batch_size: int = 0  # rows per optimizer step; 0: all


def build(cfg: Config) -> tuple[Pipeline, Pipeline]:
    """One GRPO step, and the evaluation on held-out prompts."""
    return group_relative("grpo", cfg, loss=ppo_clip(eps=cfg.clip))


def group_relative(
    name: str, cfg: Config, *, loss: LossTerms, advantage: Callable[[Edge, Edge], Edge] = grpo_advantage,
    loss_agg_mode: str = "seq-mean-token-mean", norm_length: int | None = None,
) -> tuple[Pipeline, Pipeline]:  # fmt: skip
    """GRPO's step with this loss, and the evaluation; its relatives put their own parts in."""
    actor = actor_group(cfg)
    ref = WorkerGroup("ref", policy(cfg.model, precision=cfg.precision), pool=actor.pool)

    with Pipeline(name, steps=cfg.steps) as step:
        batch = prompts(data=cfg.data, test_share=cfg.test_share, batch_size=cfg.batch_size, n=cfg.n)
        rollout = generate(actor, batch, max_new_tokens=cfg.max_new_tokens, temperature=cfg.temperature)
        reward = verify(batch, rollout)
        advantages = advantage(rollout, reward)
        old = old_logprob(actor, rollout)
        reference = ref_logprob(ref, rollout)
        update_policy(
            actor, rollout, old, reference, advantages,
            loss=loss + cfg.kl * kl_loss(kind="k3"),
            loss_agg_mode=loss_agg_mode,
            norm_length=norm_length,
            mini_batch_size=cfg.mini_batch_size,
            micro_batch_size=cfg.micro_batch_size,
        )  # fmt: skip

    return step, held_out(cfg, actor)


def actor_group(cfg: Training) -> WorkerGroup:
    """The model that is trained."""
    pool = ResourcePool("main", process_on_nodes=[cfg.workers])
    optimizer = adamw(lr=cfg.lr, warmup=20, decay="linear", min_lr_ratio=0.1, betas=(0.9, 0.99))
    model = policy(cfg.model, optimizer=optimizer, precision=cfg.precision, rollout=cfg.rollout)
    return WorkerGroup("actor", model, pool=pool)


def held_out(cfg: Training, actor: WorkerGroup) -> Pipeline:
    """The evaluation: greedy answers to prompts that training does not see."""
    with Pipeline("eval", every=cfg.eval_every) as evaluation:
        batch = prompts(data=cfg.data, split="test", test_share=cfg.test_share, batch_size=1024)
        answer = generate(actor, batch, max_new_tokens=cfg.max_new_tokens, temperature=0.0)
        report(batch, verify(batch, answer))
    return evaluation
