"""REINFORCE++ (arXiv 2501.03262): one answer to each prompt; rewards less KL on each token, whitened over the batch."""

from dataclasses import dataclass

import grpo

from dagrl import Pipeline, WorkerGroup, policy
from dagrl.nodes import (
    generate,
    kl_penalty,
    old_logprob,
    ppo_clip,
    prompts,
    ref_logprob,
    reinforce_pp_advantage,
    update_policy,
    verify,
)


@dataclass(frozen=True, kw_only=True)
class Config(grpo.Sampling):
    """The knobs: ``dagrl run pipelines/reinforce_pp.py --set n=8``."""

    steps: int = 180
    batch_size: int = 512  # prompts per step
    n: int = 1
    clip: float = 0.2  # acts from the second mini-batch of a step on
    kl: float = 0.02  # what a nat of KL costs
    mini_batch_size: int = 0  # rows per optimizer step; 0: all


def build(cfg: Config) -> tuple[Pipeline, Pipeline]:
    """One step, and the evaluation on held-out prompts."""
    actor = grpo.actor_group(cfg)
    ref = WorkerGroup("ref", policy(cfg.model, precision=cfg.precision), pool=actor.pool)

    with Pipeline("reinforce_pp", steps=cfg.steps) as step:
        batch = prompts(data=cfg.data, test_share=cfg.test_share, batch_size=cfg.batch_size, n=cfg.n)
        rollout = generate(actor, batch, max_new_tokens=cfg.max_new_tokens, temperature=cfg.temperature)
        reward = verify(batch, rollout)
        old = old_logprob(actor, rollout)
        penalized = kl_penalty(rollout, reward, old, ref_logprob(ref, rollout), beta=cfg.kl)
        advantage = reinforce_pp_advantage(rollout, penalized.only("token_rewards"))
        update_policy(
            actor, rollout, old, advantage,
            loss=ppo_clip(eps=cfg.clip),
            loss_agg_mode="token-mean",
            mini_batch_size=cfg.mini_batch_size,
            micro_batch_size=cfg.micro_batch_size,
        )  # fmt: skip

    return step, grpo.held_out(cfg, actor)
