"""Advantage nodes in a pipeline: what their calls are refused for, unscorable rows, and a step on a tiny model."""

from math import nan

import pytest
import torch
from jaxtyping import Float32
from torch import Tensor

from dagrl import Metrics, Pipeline, ResourcePool, WorkerGroup, adamw, node, policy
from dagrl.compiler import compile_pipelines
from dagrl.errors import CompileError
from dagrl.nodes import (
    gae_advantage,
    gdpo_advantage,
    generate,
    gpg_advantage,
    grpo_passk_advantage,
    gspo,
    maxrl_advantage,
    old_logprob,
    opo_advantage,
    otb_advantage,
    pass_at_k_advantage,
    place_rewards,
    prompts,
    reinforce_advantage,
    reinforce_pp_advantage,
    reinforce_pp_baseline_advantage,
    remax_advantage,
    rloo_advantage,
    stack_rewards,
    update_policy,
    verify,
    whiten_advantages,
)
from dagrl.ops.advantages import whiten

Returns = Float32[Tensor, "B T"]


def compiled(advantage, n: int = 4):
    """A step whose advantage is ``advantage(batch, rollout, reward, old)``."""
    pool = ResourcePool("main")
    actor = WorkerGroup("actor", policy("zoo:tiny", optimizer=adamw(lr=1e-3)), pool=pool)
    with Pipeline("step", steps=1) as step:
        batch = prompts(data="zoo:larger", batch_size=2, n=n)
        rollout = generate(actor, batch, max_new_tokens=8)
        old = old_logprob(actor, rollout)
        update_policy(actor, rollout, old, advantage(batch, rollout, verify(batch, rollout), old), loss=gspo())
    return compile_pipelines([step])[0]


def problems(advantage, n: int = 4) -> str:
    with pytest.raises(CompileError) as caught:
        compiled(advantage, n)
    return str(caught.value)


GROUPED = {
    "maxrl": lambda b, rollout, reward, old, **o: maxrl_advantage(rollout, reward, **o),
    "opo": lambda b, rollout, reward, old, **o: opo_advantage(rollout, reward, **o),
    "gpg": lambda b, rollout, reward, old, **o: gpg_advantage(rollout, reward, **o),
    "pass_at_k": lambda b, rollout, reward, old, **o: pass_at_k_advantage(rollout, reward, k=2, **o),
    "grpo_passk": lambda b, rollout, reward, old, **o: grpo_passk_advantage(rollout, reward, **o),
    "gdpo": lambda b, rollout, reward, old, **o: gdpo_advantage(rollout, stack_rewards(reward), **o),
    "reinforce_pp_baseline": lambda b, r, reward, old, **o: reinforce_pp_baseline_advantage(r, reward, **o),
    "otb": lambda b, rollout, reward, old, **o: otb_advantage(rollout, reward, old, **o),
    "rloo": lambda b, rollout, reward, old, **o: rloo_advantage(rollout, reward, **o),
}
ROWWISE = {
    "reinforce": lambda b, rollout, reward, old: reinforce_advantage(rollout, reward, gamma=0.99),
    "reinforce with a baseline": lambda b, rollout, reward, old: whiten_advantages(
        rollout, reward, reinforce_advantage(rollout, reward), normalize_by_std=False
    ),
    "reinforce_pp": lambda b, rollout, reward, old: reinforce_pp_advantage(rollout, reward),
    "on tokens": lambda b, rollout, reward, old: reinforce_pp_advantage(rollout, place_rewards(rollout, reward)),
}


@pytest.mark.parametrize("name", GROUPED)
def test_a_group_of_one_has_no_baseline(name) -> None:
    assert compiled(GROUPED[name])
    assert "`prompts` has n=1: a group of one has no baseline" in problems(GROUPED[name], n=1)
    assert compiled(lambda *edges: GROUPED[name](*edges, allow_singletons=True), n=1)


@pytest.mark.parametrize("name", ROWWISE)
def test_rows_by_themselves_need_no_group(name) -> None:
    assert compiled(ROWWISE[name], n=1)


def with_values(rollout):
    return rollout.rename(rollout_logprobs="values")


@pytest.mark.parametrize(
    ("advantage", "refusal"),
    [
        (lambda b, r, reward, old: gae_advantage(r, reward), "`gae_advantage` reads `values: f32[B T]`, but no edge"),
        (lambda b, r, reward, old: gae_advantage(with_values(r), reward, lam=1.1), "`lam` is 1.1"),
        (lambda b, r, reward, old: gae_advantage(with_values(r), reward, gamma=-0.1), "`gamma` is -0.1"),
        (lambda b, r, reward, old: gae_advantage(with_values(r)), "neither `rewards` nor `token_rewards` arrives"),
        (
            lambda b, r, reward, old: gae_advantage(with_values(r), reward, place_rewards(r, reward)),
            "`rewards` and `token_rewards` both arrive: those on tokens include the outcome",
        ),
        (
            lambda b, r, reward, old: rloo_advantage(r, reward, normalize_by_std=True),
            "`normalize_by_std=True` divides a leave-one-out advantage by a spread that the row itself is part of",
        ),
        (lambda b, r, reward, old: reinforce_advantage(r, reward, gamma=2.0), "`gamma` is 2.0"),
        (lambda b, r, reward, old: reinforce_pp_advantage(r), "neither `rewards` nor `token_rewards` arrives"),
        (
            lambda b, r, reward, old: whiten_advantages(r, gae_advantage(with_values(r), reward)),
            "by which it knows rows that are unscorable",
        ),
        (lambda b, r, reward, old: pass_at_k_advantage(r, reward, k=0), "`k` is 0"),
        (lambda b, r, reward, old: pass_at_k_advantage(r, reward, k=4), "a group has one subset of k=4 at most"),
        (lambda b, r, reward, old: remax_advantage(r, reward), "`remax_advantage` reads `baseline_rewards: f32[B]`"),
        (lambda b, r, reward, old: otb_advantage(r, reward), "`otb_advantage` reads `old_logprobs: f32[B T]`"),
        (lambda b, r, reward, old: gdpo_advantage(r, reward), "`reward_components` is written by `stack_rewards`"),
    ],
)
def test_refusals(advantage, refusal) -> None:
    assert refusal in problems(advantage)


def test_remax_takes_a_greedy_rollout_of_the_same_prompts() -> None:
    pool = ResourcePool("main")
    actor = WorkerGroup("actor", policy("zoo:tiny", optimizer=adamw(lr=1e-3)), pool=pool)
    with Pipeline("remax", steps=1) as step:
        batch = prompts(data="zoo:larger", batch_size=2, n=1)
        rollout = generate(actor, batch, max_new_tokens=8)
        greedy = generate(actor, batch, max_new_tokens=8, temperature=0.0, name="greedy")
        baseline = verify(batch, greedy, name="greedy_reward").rename(rewards="baseline_rewards")
        advantage = remax_advantage(rollout, verify(batch, rollout), baseline)
        update_policy(actor, rollout, old_logprob(actor, rollout), advantage, loss=gspo())
    (plan,) = compile_pipelines([step])
    assert {"greedy", "greedy_reward", "remax_advantage"} <= {op.call for op in plan.runs}


def test_gae_then_whitening_compiles_with_returns_for_the_critic() -> None:
    @node()
    def critic(returns: Returns) -> Metrics: ...

    def advantage(batch, rollout, reward, old):
        estimate = gae_advantage(with_values(rollout), reward, lam=0.95)
        critic(estimate)
        return whiten_advantages(rollout, reward, estimate)

    plan = compiled(advantage)
    assert {"gae_advantage", "whiten_advantages", "critic"} <= {op.call for op in plan.runs}


MASK = torch.tensor([[True, False, True], [True, True, False], [False, False, False]])


def test_gae_of_an_unscorable_row_teaches_neither_actor_nor_critic() -> None:
    values = torch.tensor([[0.5, nan, 0.25], [0.1, 0.2, nan], [nan, nan, nan]])
    found, metrics = gae_advantage(values, MASK, torch.tensor([nan, 1.0, 1.0]))
    assert found.advantages[0].tolist() == [0, 0, 0]
    assert found.returns[0].tolist() == [0.5, 0, 0.25]
    assert found.advantages[1].tolist() == pytest.approx([0.9, 0.8, 0])
    assert found.returns[1].tolist() == pytest.approx([1, 1, 0])
    assert not found.advantages[2].any()
    assert not found.returns[2].any()
    assert metrics.numbers() == {"advantage/unscorable_rows": 1}
    broken, _ = gae_advantage(torch.tensor([[nan, 0.0, 0.0]]), MASK[:1], torch.tensor([1.0]))
    assert broken.advantages[0, 0].isnan()


def test_gae_takes_the_whole_reward_on_tokens() -> None:
    rewards, values = torch.tensor([1.0, -1.0, 2.0]), torch.rand(3, 3)
    penalty = torch.tensor([[0.1, nan, 0.2], [0.3, 0.4, nan], [nan, nan, nan]])
    whole = place_rewards(rewards, MASK, -penalty)
    assert torch.allclose(whole, torch.tensor([[-0.1, 0, 0.8], [-0.3, -1.4, 0], [0, 0, 0]]))
    found, _ = gae_advantage(values, MASK, token_rewards=whole, gamma=0.9, lam=0.5)
    assert found.returns[0, 2] == pytest.approx(0.8)


def test_reinforce_and_remax_of_unscorable_rows() -> None:
    rewards = torch.tensor([nan, 2.0, 1.0])
    found, metrics = reinforce_advantage(MASK, rewards)
    assert found.tolist() == [[0, 0, 0], [2, 2, 0], [0, 0, 0]]
    assert metrics.numbers() == {"advantage/unscorable_rows": 1}
    found, metrics = remax_advantage(torch.tensor([1.0, nan, 0.0]), MASK, rewards)
    assert not found.any()
    assert metrics.numbers() == {"advantage/unscorable_rows": 2}
    tokens = torch.tensor([[0.5, 9.0, 1.0], [0.0, 1.0, 9.0], [9.0, 9.0, 9.0]])
    found, _ = remax_advantage(torch.tensor([0.5, 0.5, 0.5]), MASK, token_rewards=tokens)
    assert found.tolist() == [[1, 0, 0.5], [0.5, 0.5, 0], [0, 0, 0]]


def test_stacked_rewards_keep_their_order_and_their_gaps() -> None:
    first, second = torch.tensor([1.0, nan]), torch.tensor([0.5, 0.25])
    alone = stack_rewards(first)
    assert alone.shape == (2, 1)
    both = stack_rewards(second, alone)
    assert both[0].tolist() == [1, 0.5]
    assert both[1, 0].isnan()
    found, _ = gdpo_advantage(both[:1].repeat(2, 1), torch.zeros(2).long(), torch.ones(2, 1).bool())
    assert not found.any()


def test_a_batch_baseline_is_whitening_without_the_std() -> None:
    rewards = torch.tensor([1.0, 0.0, 5.0])
    plain, _ = reinforce_advantage(MASK, rewards)
    found = whiten_advantages(plain, MASK, rewards, normalize_by_std=False)
    assert found.tolist() == [[0.5, 0, 0.5], [-0.5, -0.5, 0], [0, 0, 0]]
    assert torch.equal(whiten_advantages(plain, MASK, rewards), whiten(plain, MASK))


def test_a_row_without_a_trained_token_still_counts_in_its_group() -> None:
    ids, rewards = torch.tensor([1, 1, 1]), torch.tensor([1.0, 0.0, 0.0])
    for function in (maxrl_advantage, gpg_advantage):
        found, _ = function(rewards, ids, MASK)
        whole, _ = function(rewards, ids, torch.ones(3, 3).bool())
        assert torch.equal(found, whole * MASK)
