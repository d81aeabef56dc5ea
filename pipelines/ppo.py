"""PPO (arXiv 1707.06347) with a critic: advantages by GAE (arXiv 1506.02438), one answer to each prompt."""

from dataclasses import dataclass
from typing import Literal

from dagrl import Pipeline, ResourcePool, WorkerGroup, adamw, critic, policy
from dagrl.nodes import (
    gae_advantage,
    generate,
    kl_loss,
    old_logprob,
    ppo_clip,
    prompts,
    ref_logprob,
    report,
    update_critic,
    update_policy,
    value_clip,
    values,
    verify,
)


@dataclass(frozen=True, kw_only=True)
class Config:
    """The knobs: ``dagrl run pipelines/ppo.py --set lam=0.9``."""

    model: str = "zoo:tiny"  # or a Hugging Face name, or a local folder
    critic_model: str = ""  # its head is new unless it has one, as a reward model has; "": the actor's start model
    data: str = "zoo:larger"  # or a file of rows, or a folder with one for each split
    test_share: float = 0.0  # part of a single data file that only the evaluation sees
    steps: int = 240
    batch_size: int = 512  # prompts per step
    max_new_tokens: int = 8
    temperature: float = 1.0
    lr: float = 2.5e-4
    critic_lr: float = 5e-4
    clip: float = 0.2
    value_clip: float = 0.2
    gamma: float = 1.0
    lam: float = 0.95
    kl: float = 0.02  # 0 drops the reference model
    mini_batch_size: int = 256  # rows per optimizer step: from the second of a step on the clips can act
    micro_batch_size: int = 0  # rows per forward pass; 0: by the models' token budgets
    precision: Literal["bf16", "fp32"] = "bf16"
    eval_every: int = 60
    workers: int = 0  # processes; 0: on Ray one for each GPU, else for each core


def build(cfg: Config) -> tuple[Pipeline, Pipeline]:
    """One PPO step, and the evaluation on held-out prompts."""
    pool = ResourcePool("main", process_on_nodes=[cfg.workers])
    optimizer = adamw(lr=cfg.lr, warmup=20, decay="linear", min_lr_ratio=0.1, betas=(0.9, 0.99))
    actor = WorkerGroup("actor", policy(cfg.model, optimizer=optimizer, precision=cfg.precision), pool=pool)
    ref = WorkerGroup("ref", policy(cfg.model, precision=cfg.precision), pool=pool)
    value_model = critic(cfg.critic_model or cfg.model, optimizer=adamw(lr=cfg.critic_lr), precision=cfg.precision)
    value_group = WorkerGroup("critic", value_model, pool=pool)

    with Pipeline("ppo", steps=cfg.steps) as step:
        batch = prompts(data=cfg.data, test_share=cfg.test_share, batch_size=cfg.batch_size)
        rollout = generate(actor, batch, max_new_tokens=cfg.max_new_tokens, temperature=cfg.temperature)
        reward = verify(batch, rollout)
        value = values(value_group, rollout)
        advantage = gae_advantage(rollout, reward, value, gamma=cfg.gamma, lam=cfg.lam)
        old = old_logprob(actor, rollout)
        reference = ref_logprob(ref, rollout)
        sizes = {"mini_batch_size": cfg.mini_batch_size, "micro_batch_size": cfg.micro_batch_size}
        update_critic(value_group, rollout, value, advantage, loss=value_clip(eps=cfg.value_clip), **sizes)
        loss = ppo_clip(eps=cfg.clip) + cfg.kl * kl_loss(kind="k3")
        update_policy(actor, rollout, old, reference, advantage, loss=loss, **sizes)

    with Pipeline("eval", every=cfg.eval_every) as held_out:
        batch = prompts(data=cfg.data, split="test", test_share=cfg.test_share, batch_size=1024)
        answer = generate(actor, batch, max_new_tokens=cfg.max_new_tokens, temperature=0.0)
        report(batch, verify(batch, answer))

    return step, held_out
