"""A step of fifteen nodes on two pools, for the plan's drawing and the live view."""

from dataclasses import dataclass

import torch
from jaxtyping import Bool, Float32, Int64
from torch import Tensor

from dagrl import Metrics, Objects, Pipeline, Policy, ResourcePool, Sum, WorkerGroup, adamw, node, policy
from dagrl.graph.roles import TokenBatch
from dagrl.nodes import (
    format_reward,
    generate,
    grpo_advantage,
    kl_loss,
    length_penalty,
    old_logprob,
    ppo_clip,
    prompts,
    ref_logprob,
    report,
    sum_rewards,
    update_policy,
    verify,
)


@node(writes="judge_entropy")
def judge_entropy(
    judge: Policy,
    input_ids: Int64[Tensor, "B S"],
    attention_mask: Bool[Tensor, "B S"],
    position_ids: Int64[Tensor, "B S"],
    response_mask: Bool[Tensor, "B T"],
    temperatures: Float32[Tensor, " B"],
) -> Float32[Tensor, "B T"]:
    """How unsure the judge is of each token."""
    tokens = TokenBatch(input_ids, attention_mask, position_ids, response_mask, temperatures)
    return judge.compute_logprobs(tokens).entropy


@node(writes="rewards")
def certainty(judge_entropy: Float32[Tensor, "B T"], response_mask: Bool[Tensor, "B T"]) -> Float32[Tensor, " B"]:
    """The less unsure the judge is, the better."""
    return -(judge_entropy * response_mask).sum(1) / response_mask.sum(1).clamp(min=1)


@node(writes="novelty")
def novelty(response_text: Objects[str]) -> Float32[Tensor, " B"]:
    """One over how often the text came."""
    texts = list(response_text)
    return torch.tensor([1.0 / texts.count(text) for text in texts])


@node(writes="rewards")
def novelty_reward(novelty: Float32[Tensor, " B"]) -> Float32[Tensor, " B"]:
    """A little for being different."""
    return 0.1 * novelty


@node()
def count_answers(response_text: Objects[str]) -> Metrics:
    """Counts texts."""
    return Metrics({"answers/distinct": Sum(float(len(set(response_text))))})


@dataclass(frozen=True, kw_only=True)
class Config:
    """Knobs."""

    steps: int = 20
    batch_size: int = 64
    n: int = 4
    workers: int = 1
    judges: int = 1


def build(cfg: Config) -> tuple[Pipeline, Pipeline]:
    """The step, and an evaluation."""
    main, aside = ResourcePool("main", [cfg.workers]), ResourcePool("aside", [cfg.judges])
    actor = WorkerGroup("actor", policy("zoo:tiny", optimizer=adamw(lr=2e-4)), pool=main)
    ref = WorkerGroup("ref", policy("zoo:tiny"), pool=main)
    judge = WorkerGroup("judge", policy("zoo:tiny"), pool=aside)
    with Pipeline("many", steps=cfg.steps) as step:
        batch = prompts(data="zoo:larger", batch_size=cfg.batch_size, n=cfg.n)
        rollout = generate(actor, batch, max_new_tokens=8)
        correct = verify(batch, rollout)
        form = format_reward(rollout, pattern=r"\d+")
        short = length_penalty(rollout, correct, max_length=8, buffer=4)
        sure = certainty(judge_entropy(judge, rollout), rollout)
        new = novelty_reward(novelty(rollout))
        count_answers(rollout)
        style = sum_rewards(sure, new.rename(rewards="other_rewards"), name="style")
        manners = sum_rewards(form, short.rename(rewards="other_rewards"), name="manners")
        extra = sum_rewards(manners, style.rename(rewards="other_rewards"), weight=0.1, name="extra")
        total = sum_rewards(correct, extra.rename(rewards="other_rewards"), weight=0.1, name="total")
        reference = ref_logprob(ref, rollout)
        old = old_logprob(actor, rollout)
        update_policy(
            actor, rollout, old, reference, grpo_advantage(rollout, total),
            loss=ppo_clip() + 0.02 * kl_loss(),
        )  # fmt: skip
    with Pipeline("eval", every=10) as held_out:
        batch = prompts(data="zoo:larger", split="test", batch_size=512)
        report(batch, verify(batch, generate(actor, batch, max_new_tokens=8, temperature=0.0)))
    return step, held_out
