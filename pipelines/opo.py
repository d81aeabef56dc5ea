"""OPO (arXiv 2505.23585): strictly on-policy; the baseline of least variance is a length-weighted mean reward."""

from dataclasses import dataclass

import grpo

from dagrl import Pipeline
from dagrl.nodes import generate, opo_advantage, prompts, reinforce, update_policy, verify


@dataclass(frozen=True, kw_only=True)
class Config(grpo.Sampling):
    """The knobs: ``dagrl run pipelines/opo.py --set n=8``."""


def build(cfg: Config) -> tuple[Pipeline, Pipeline]:
    """One step, and the evaluation on held-out prompts."""
    actor = grpo.actor_group(cfg)

    with Pipeline("opo", steps=cfg.steps) as step:
        batch = prompts(data=cfg.data, test_share=cfg.test_share, batch_size=cfg.batch_size, n=cfg.n)
        rollout = generate(actor, batch, max_new_tokens=cfg.max_new_tokens, temperature=cfg.temperature)
        reward = verify(batch, rollout)
        update_policy(
            actor, rollout, opo_advantage(rollout, reward),
            loss=reinforce(),
            loss_agg_mode="seq-mean-token-sum",
            micro_batch_size=cfg.micro_batch_size,
        )  # fmt: skip

    return step, grpo.held_out(cfg, actor)
