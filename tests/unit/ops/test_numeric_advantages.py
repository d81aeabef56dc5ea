"""Small inputs and the right advantage, worked out by hand or by an independent reference."""

from math import nan

import pytest
import torch

from dagrl.nodes import (
    gae_advantage,
    maxrl_advantage,
    opo_advantage,
    place_rewards,
    reinforce_advantage,
    reinforce_pp_advantage,
    reinforce_pp_baseline_advantage,
    remax_advantage,
)
from dagrl.ops.advantages import (
    gae_advantages,
    grpo_advantages,
    maxrl_advantages,
    place_on_last_token,
    rloo_advantages,
    spread_to_tokens,
    whiten,
)


def tensor(*rows):
    return torch.tensor([list(row) for row in rows], dtype=torch.float32)


def bools(*rows):
    return torch.tensor([list(row) for row in rows]).bool()


def close(expected):
    return pytest.approx(expected, abs=1e-5)


@pytest.mark.parametrize(
    ("rewards", "values", "mask", "gamma", "lam", "expected"),
    [
        ([0, 0, 1], [0.5, 0.6, 0.7], [1, 1, 1], 1, 1, [0.5, 0.4, 0.3]),
        ([0, 0, 1], [0.5, 0.6, 0.7], [1, 1, 1], 0.9, 0.8, [0.21712, 0.246, 0.3]),
        ([0, 7, -3, 1], [0.5, 9, -9, 0.7], [1, 0, 0, 1], 0.9, 0.8, [0.346, 0, 0, 0.3]),
        ([0, 0.5, 0, 0, 1], [0.1, 0.2, 3, 0.3, 0.4], [1, 1, 0, 1, 1], 0.9, 0.95, [0.986227, 1.059915, 0, 0.573, 0.6]),
        ([0, 1, 0, 0], [0.5, 0.6, 100, 100], [1, 1, 0, 0], 1, 1, [0.5, 0.4, 0, 0]),
    ],
    ids=["undiscounted", "discounted", "observation tokens", "two turns", "padding"],
)
def test_gae(rewards, values, mask, gamma, lam, expected):
    found = gae_advantages(tensor(rewards), tensor(values), bools(mask), gamma=gamma, lam=lam)
    assert found[0].tolist() == close(expected)


@pytest.mark.parametrize(
    ("gamma", "lam", "rewards", "values", "mask", "expected"),
    [
        (1.0, 1.0, [0, 0, 1], [0.5, 0.6, 0.7], [1, 1, 1], [1, 1, 1]),
        (0.9, 0.8, [0, 0, 1], [0.5, 0.6, 0.7], [1, 1, 1], [0.71712, 0.846, 1]),
        (0.9, 0.8, [0, 7, -3, 1], [0.5, 9, -9, 0.7], [1, 0, 0, 1], [0.846, 0, 0, 1]),
    ],
)
def test_returns(gamma, lam, rewards, values, mask, expected):
    found, _ = gae_advantage(tensor(values), bools(mask), token_rewards=tensor(rewards), gamma=gamma, lam=lam)
    assert found.returns[0].tolist() == close(expected)


def test_an_outcome_reward_goes_on_the_last_trained_token():
    assert place_on_last_token(torch.tensor([1.0]), bools([1, 1, 0])).tolist() == [[0, 1, 0]]
    assert place_rewards(torch.tensor([1.0]), bools([1, 1, 0])).tolist() == [[0, 1, 0]]
    values, mask = tensor([0.5, 0.6, 100]), bools([1, 1, 0])
    found, _ = gae_advantage(values, mask, torch.tensor([1.0]))
    assert found.advantages[0].tolist() == close([0.5, 0.4, 0])


def test_reward_to_go():
    found, _ = reinforce_advantage(bools([1, 0, 1]), token_rewards=tensor([0, 5, 1]), gamma=0.5)
    assert found[0].tolist() == [0.5, 0, 1]


def test_whitening():
    assert whiten(tensor([1, 2, 3, 100]), bools([1, 1, 1, 0]))[0].tolist() == close([-1, 0, 1, 0])
    assert whiten(tensor([4, 2]), bools([1, 0])).tolist() == [[0, 0]]
    assert whiten(tensor([0.1, 0.1], [0.1, 0.1]), bools([1, 1], [1, 0])).tolist() == [[0, 0], [0, 0]]
    assert whiten(tensor([3, nan]), bools([0, 0])).tolist() == [[0, 0]]


def per_row(function, rewards, ids=None, **options):
    ids = [0] * len(rewards) if ids is None else ids
    return function(torch.tensor(rewards, dtype=torch.float32), torch.tensor(ids), **options).tolist()


def test_group_advantages():
    assert per_row(grpo_advantages, [1, 0, 0, 0]) == close([1.5, -0.5, -0.5, -0.5])
    assert per_row(grpo_advantages, [1, 0, 0, 0], normalize_by_std=False) == close([0.75, -0.25, -0.25, -0.25])
    assert per_row(grpo_advantages, [0.1] * 7) == [0] * 7
    assert per_row(grpo_advantages, [1, 1.00001]) == close([-0.619601, 0.619601])
    assert per_row(grpo_advantages, [1, 10, 0, 10], [1, 2, 1, 2]) == close([0.70711, 0, -0.70711, 0])
    assert per_row(grpo_advantages, [1, 0, 0, 5], [1, 1, 1, 2]) == close([1.1547, -0.57735, -0.57735, 0])
    assert per_row(rloo_advantages, [1, 0, 0, 0]) == close([1, -1 / 3, -1 / 3, -1 / 3])
    assert per_row(rloo_advantages, [0.2, 0.4, 0.9]) == close([-0.45, -0.15, 0.6])
    assert per_row(grpo_advantages, [1, nan, 0]) == close([0.70711, 0, -0.70711])
    assert per_row(grpo_advantages, [nan, nan]) == [0, 0]
    assert per_row(maxrl_advantages, [1, 0, 0, 0]) == close([3, -1, -1, -1])


def test_remax_maxrl_and_opo():
    found, _ = remax_advantage(torch.tensor([0.5]), bools([1, 0, 1]), torch.tensor([1.0]))
    assert found.tolist() == [[0.5, 0, 0.5]]
    ids, rewards = torch.zeros(4).long(), torch.tensor([1.0, 0, 0, 0])
    assert maxrl_advantage(rewards, ids, torch.ones(4, 1).bool())[0].flatten().tolist() == close([3, -1, -1, -1])
    mask = torch.arange(40) < torch.tensor([[10], [20], [30], [40]])
    found, _ = opo_advantage(rewards, ids, mask)
    assert found[:, 0].tolist() == close([0.9, -0.1, -0.1, -0.1])
    assert (found * ~mask == 0).all()


def test_reinforce_pp_whitens_tokens_and_its_baseline_comes_first():
    mask = bools([1, 1, 1], [1, 0, 0], [1, 0, 0], [1, 0, 0])
    rewards = torch.tensor([1.0, 0, 1, 1])
    # tokens 1 1 1 0 1 1: mean 5/6, unbiased variance 1/6
    found, _ = reinforce_pp_advantage(mask, rewards)
    assert found[:, 0].tolist() == close([0.408248, -2.041241, 0.408248, 0.408248])
    # KL paid on tokens: to go 1.25 1 .5 | 0 | 1 | -.25, mean 7/12, unbiased variance 11/30
    tokens = tensor([0.25, 0.5, 0.5], [0, 9, 9], [1, 9, 9], [-0.25, 9, 9])
    found, _ = reinforce_pp_advantage(mask, token_rewards=tokens)
    assert found[:, 0].tolist() == close([1.100962, -0.963342, 0.688101, -1.376202])
    assert found[0].tolist() == close([1.100962, 0.688101, -0.137620])
    # groups {1, 0} and {1, 1}: centred .5 .5 .5 -.5 0 0, mean 1/6, unbiased variance 1/6
    found, _ = reinforce_pp_baseline_advantage(rewards, torch.tensor([7, 7, 8, 8]), mask)
    assert found[:, 0].tolist() == close([0.816496, -1.632990, -0.408248, -0.408248])


def test_a_trajectory_in_two_rows_has_one_advantage():
    found = spread_to_tokens(torch.tensor([2.0, 2.0]), bools([1, 1, 0, 0], [0, 0, 1, 1]))
    assert found.tolist() == [[2, 2, 0, 0], [0, 0, 2, 2]]
