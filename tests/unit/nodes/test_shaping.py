"""Length and format rewards, sums of rewards, and what their calls are refused for."""

import math

import pytest
import reference_ops as reference
import torch

from dagrl import Pipeline, ResourcePool, WorkerGroup, adamw, policy
from dagrl.compiler import compile_pipelines
from dagrl.errors import CompileError
from dagrl.nodes import (
    format_reward,
    generate,
    grpo_advantage,
    gspo,
    length_penalty,
    old_logprob,
    prompts,
    rloo_advantage,
    sum_rewards,
    update_policy,
    verify,
)

NAN, inf = math.nan, math.inf


@pytest.mark.parametrize(("max_length", "buffer", "penalty"), [(8, 4, 1.0), (5, 5, 0.5), (6, 1, 2.0)])
def test_length_penalty_is_equation_13(max_length, buffer, penalty) -> None:
    lengths = list(range(12))
    found = length_penalty(
        torch.full((12,), 0.25), torch.tensor(lengths), max_length=max_length, buffer=buffer, penalty=penalty
    )
    expected = [0.25 + reference.overlong(length, max_length, buffer, penalty) for length in lengths]
    assert found.tolist() == pytest.approx(expected)
    assert found.dtype == torch.float32


def test_length_penalty_by_hand() -> None:
    found = length_penalty(torch.ones(5), torch.tensor([4, 5, 6, 8, 9]), max_length=8, buffer=4)
    assert found.tolist() == [1.0, 0.75, 0.5, 0.0, 0.0]
    unscorable = length_penalty(torch.tensor([NAN]), torch.tensor([9]), max_length=8, buffer=4)
    assert unscorable.isnan().all()


def test_format_reward_matches_the_whole_text_over_lines() -> None:
    texts = ["<think>a\nb</think>7", "<think></think>", "x<think>a</think>7", "<think>a</think>7\n", ""]
    assert format_reward(texts, pattern=r"<think>.*</think>\d+", reward=0.5).tolist() == [0.5, 0, 0, 0, 0]
    assert format_reward([], pattern="a").shape == (0,)
    assert format_reward(texts, pattern=r".*").dtype == torch.float32


def test_sum_rewards() -> None:
    found = sum_rewards(torch.tensor([1.0, NAN, 0.0]), torch.tensor([1.0, 1.0, NAN]), weight=0.5)
    assert found[0] == 1.5
    assert found[1:].isnan().all()


def compiled(shape, advantage=grpo_advantage, n: int = 4, **options):
    """A step whose reward is shaped by ``shape(batch, rollout, reward)``."""
    pool = ResourcePool("main")
    actor = WorkerGroup("actor", policy("zoo:tiny", optimizer=adamw(lr=1e-3)), pool=pool)
    with Pipeline("step", steps=1) as step:
        batch = prompts(data="zoo:larger", batch_size=2, n=n)
        rollout = generate(actor, batch, max_new_tokens=8)
        reward = shape(rollout, verify(batch, rollout))
        old = old_logprob(actor, rollout)
        update_policy(actor, rollout, old, advantage(rollout, reward, **options), loss=gspo())
    return compile_pipelines([step])[0]


def test_rewards_chain_and_add_up() -> None:
    def shape(rollout, reward):
        form = format_reward(rollout, pattern=r"\d+").rename(rewards="other_rewards")
        return length_penalty(rollout, sum_rewards(reward, form, weight=0.1), max_length=8, buffer=4)

    plan = compiled(shape, rloo_advantage)
    assert [op.call for op in plan.runs if op.call in ("format_reward", "sum_rewards", "length_penalty")]


def keep(rollout, reward):
    return reward


@pytest.mark.parametrize(
    ("shape", "options", "refusal"),
    [
        (
            lambda r, reward: format_reward(r, pattern="<think>(.*"),
            {},
            "is no regular expression: missing )",
        ),
        (lambda r, reward: length_penalty(r, reward, max_length=8, buffer=0), {}, "`buffer` is 0.\n"),
        (lambda r, reward: length_penalty(r, reward, max_length=8, buffer=9), {}, "`buffer` is 9.\n"),
        (lambda r, reward: length_penalty(r, reward, max_length=8, buffer=2, penalty=-1.0), {}, "`penalty` is -1.0"),
        (lambda r, reward: length_penalty(r, reward, max_length=8, buffer=2, penalty=inf), {}, "`penalty` is inf"),
        (lambda r, reward: format_reward(r, pattern="a", reward=-inf), {}, "`reward` is -inf"),
        (
            lambda r, reward: sum_rewards(reward, reward.rename(rewards="other_rewards"), weight=inf),
            {},
            "`weight` is inf",
        ),
        (lambda r, reward: length_penalty(r, reward, max_length=20, buffer=4), {}, "of `generate` is ever punished"),
        (keep, {"advantage": rloo_advantage, "normalize_by_std": True}, "divides a leave-one-out advantage"),
        (keep, {"advantage": rloo_advantage, "n": 1}, "`prompts` has n=1: a group of one has no baseline"),
    ],
    ids=[
        "pattern",
        "no buffer",
        "wide buffer",
        "negative penalty",
        "infinite penalty",
        "infinite reward",
        "infinite weight",
        "never long enough",
        "std",
        "group of one",
    ],
)
def test_refusals(shape, options, refusal: str) -> None:
    with pytest.raises(CompileError) as caught:
        compiled(shape, **options)
    assert refusal in str(caught.value)
    assert "test_shaping.py:" in str(caught.value)


def test_singletons_are_allowed_when_said() -> None:
    assert compiled(keep, rloo_advantage, n=1, allow_singletons=True)


@pytest.mark.parametrize(("name", "value"), [("eps", 0.0), ("eps", 1.5), ("eps_high", -0.1)])
def test_a_sequence_clip_out_of_range_is_refused(name: str, value: float) -> None:
    pool = ResourcePool("main")
    actor = WorkerGroup("actor", policy("zoo:tiny", optimizer=adamw(lr=1e-3)), pool=pool)
    with Pipeline("step", steps=1) as step:
        batch = prompts(data="zoo:larger", batch_size=2, n=4)
        rollout = generate(actor, batch, max_new_tokens=8)
        advantage = grpo_advantage(rollout, verify(batch, rollout))
        update_policy(actor, rollout, old_logprob(actor, rollout), advantage, loss=gspo(**{name: value}))
    with pytest.raises(
        CompileError, match=f"`{name}` is {value}\\.\\n.*\\n +fix +the clip range must lie between 0 and 1"
    ):
        compile_pipelines([step])
