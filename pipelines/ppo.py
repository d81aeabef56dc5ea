"""PPO (arXiv 1707.06347) with a critic: advantages by GAE (arXiv 1506.02438), one answer to each prompt."""

from dataclasses import dataclass

import grpo

from dagrl import Pipeline, WorkerGroup, adamw, critic, policy
from dagrl.nodes import (
    gae_advantage,
    generate,
    kl_loss,
    old_logprob,
    ppo_clip,
    prompts,
    ref_logprob,
    update_critic,
    update_policy,
    value_clip,
    values,
    verify,
)


@dataclass(frozen=True, kw_only=True)
class Config(grpo.Sampling):
    """The knobs: ``dagrl run pipelines/ppo.py --set lam=0.9``."""

    critic_model: str = ""  # its head is new unless it has one, as a reward model has; "": the actor's start model
    steps: int = 120
    batch_size: int = 512  # prompts per step
    n: int = 1
    critic_lr: float = 5e-4
    critic_warmup: int = 0  # first steps, in which the critic learns alone
    clip: float = 0.2
    value_clip: float = 0.2
    gamma: float = 1.0
    lam: float = 0.95
    kl: float = 0.02  # 0 drops the reference model
    mini_batch_size: int = 256  # rows per optimizer step: from the second of a step on the clips can act
    eval_every: int = 30


def build(cfg: Config) -> tuple[Pipeline, Pipeline]:
    """One PPO step, and the evaluation on held-out prompts."""
    actor = grpo.actor_group(cfg)
    ref = WorkerGroup("ref", policy(cfg.model, precision=cfg.precision), pool=actor.pool)
    value_model = critic(cfg.critic_model or cfg.model, optimizer=adamw(lr=cfg.critic_lr), precision=cfg.precision)
    value_group = WorkerGroup("critic", value_model, pool=actor.pool)

    with Pipeline("ppo", steps=cfg.steps) as step:
        batch = prompts(data=cfg.data, test_share=cfg.test_share, batch_size=cfg.batch_size, n=cfg.n)
        rollout = generate(actor, batch, max_new_tokens=cfg.max_new_tokens, temperature=cfg.temperature)
        reward = verify(batch, rollout)
        value = values(value_group, rollout)
        advantage = gae_advantage(rollout, reward, value, gamma=cfg.gamma, lam=cfg.lam)
        old = old_logprob(actor, rollout)
        reference = ref_logprob(ref, rollout)
        sizes = {"mini_batch_size": cfg.mini_batch_size, "micro_batch_size": cfg.micro_batch_size}
        update_critic(value_group, rollout, value, advantage, loss=value_clip(eps=cfg.value_clip), **sizes)
        loss = ppo_clip(eps=cfg.clip) + cfg.kl * kl_loss(kind="k3")
        update_policy(
            actor, rollout, old, reference, advantage, loss=loss, critic_warmup=cfg.critic_warmup, **sizes
        )  # fmt: skip

    return step, grpo.held_out(cfg, actor)
