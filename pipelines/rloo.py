"""RLOO (arXiv 2402.14740): REINFORCE with the mean reward of the other answers as baseline, and KL in the reward."""

from dataclasses import dataclass

import grpo

from dagrl import Pipeline, WorkerGroup, policy
from dagrl.nodes import (
    generate,
    kl_penalty,
    old_logprob,
    prompts,
    ref_logprob,
    reinforce,
    rloo_advantage,
    update_policy,
    verify,
)


@dataclass(frozen=True, kw_only=True)
class Config(grpo.Sampling):
    """The knobs: ``dagrl run pipelines/rloo.py --set n=8``."""

    kl: float = 0.02  # what a nat of KL costs


def build(cfg: Config) -> tuple[Pipeline, Pipeline]:
    """One step, and the evaluation on held-out prompts."""
    actor = grpo.actor_group(cfg)
    ref = WorkerGroup("ref", policy(cfg.model, precision=cfg.precision), pool=actor.pool)

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

    return step, grpo.held_out(cfg, actor)
