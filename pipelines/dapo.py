"""DAPO (arXiv 2503.14476): draw prompts until enough groups differ in reward, and clip rises less than falls.

Unlike GRPO it has no reference model, weighs every token alike, and punishes answers that come near the length limit.
"""

from dataclasses import dataclass

import grpo

from dagrl import Pipeline, refill
from dagrl.nodes import (
    generate,
    grpo_advantage,
    length_penalty,
    mixed_groups,
    old_logprob,
    ppo_clip,
    prompts,
    update_policy,
    verify,
)


@dataclass(frozen=True, kw_only=True)
class Config(grpo.Sampling):
    """The knobs: ``dagrl run pipelines/dapo.py --set groups=32``."""

    steps: int = 120
    groups: int = 64  # groups that a step trains on
    batch_size: int = 96  # prompts per round
    max_rounds: int = 4
    overlong_buffer: int = 4  # the last tokens before the limit, in which the punishment grows
    clip: float = 0.2
    clip_high: float = 0.28
    mini_batch_size: int = 128  # rows per optimizer step: from the second of a step on the clip can act
    eval_every: int = 30


def build(cfg: Config) -> tuple[Pipeline, Pipeline]:
    """One DAPO step, and the evaluation on held-out prompts."""
    actor = grpo.actor_group(cfg)

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
            loss=ppo_clip(eps=cfg.clip, eps_high=cfg.clip_high),
            loss_agg_mode="token-mean",
            mini_batch_size=cfg.mini_batch_size,
            micro_batch_size=cfg.micro_batch_size,
        )  # fmt: skip

    return step, grpo.held_out(cfg, actor)
