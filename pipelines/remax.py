"""ReMax (arXiv 2310.10505): REINFORCE whose baseline is the reward of the greedy answer; KL is part of the reward."""

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
    remax_advantage,
    update_policy,
    verify,
)


@dataclass(frozen=True, kw_only=True)
class Config(grpo.Sampling):
    """The knobs: ``dagrl run pipelines/remax.py --set n=8``."""

    steps: int = 180
    batch_size: int = 512  # prompts per step
    n: int = 1
    kl: float = 0.02  # what a nat of KL costs


def build(cfg: Config) -> tuple[Pipeline, Pipeline]:
    """One step, and the evaluation on held-out prompts."""
    actor = grpo.actor_group(cfg)
    ref = WorkerGroup("ref", policy(cfg.model, precision=cfg.precision), pool=actor.pool)

    with Pipeline("remax", steps=cfg.steps) as step:
        batch = prompts(data=cfg.data, test_share=cfg.test_share, batch_size=cfg.batch_size, n=cfg.n)
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

    return step, grpo.held_out(cfg, actor)
