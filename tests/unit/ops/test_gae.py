"""GAE and reward-to-go against explicit sums, and what masked places may hold."""

import pytest
import reference_advantages as reference
import torch
from advantage_batches import POISONS, poisoned, random_rows

from dagrl.ops.advantages import discounted_sum, gae_advantages, place_on_last_token, token_level_rewards

DISCOUNTS = [(1.0, 1.0), (0.9, 0.8), (0.95, 1.0), (1.0, 0.95), (0.7, 0.0), (0.0, 0.5)]


def close(expected, abs=1e-6):
    return [pytest.approx(row, abs=abs) for row in expected]


@pytest.mark.parametrize("seed", range(6))
@pytest.mark.parametrize(("gamma", "lam"), DISCOUNTS)
def test_gae_is_the_weighted_sum_of_errors(seed, gamma, lam):
    rows = random_rows(seed)
    found = gae_advantages(rows.token_rewards, rows.values, rows.mask, gamma=gamma, lam=lam)
    expected = reference.gae(rows.token_rewards.tolist(), rows.values.tolist(), rows.mask.tolist(), gamma, lam)
    assert found.dtype == torch.float64
    assert found.tolist() == close(expected)
    single = gae_advantages(rows.token_rewards.float(), rows.values.float(), rows.mask, gamma=gamma, lam=lam)
    assert single.dtype == torch.float32
    assert single.tolist() == close(expected, abs=1e-5)


@pytest.mark.parametrize("seed", range(6))
@pytest.mark.parametrize("gamma", [1.0, 0.5, 0.0])
def test_reward_to_go_is_the_discounted_sum(seed, gamma):
    rows = random_rows(seed)
    found = discounted_sum(rows.token_rewards, rows.mask, gamma)
    assert found.tolist() == close(reference.reward_to_go(rows.token_rewards.tolist(), rows.mask.tolist(), gamma))


@pytest.mark.parametrize("poison", POISONS)
def test_masked_places_change_nothing(poison):
    rows = random_rows(1)
    plain = gae_advantages(rows.token_rewards, rows.values, rows.mask, gamma=0.9, lam=0.8)
    rewards, values = (poisoned(column, rows.mask, poison) for column in (rows.token_rewards, rows.values))
    assert torch.equal(gae_advantages(rewards, values, rows.mask, gamma=0.9, lam=0.8), plain)
    assert torch.equal(discounted_sum(rewards, rows.mask, 0.9), discounted_sum(rows.token_rewards, rows.mask, 0.9))
    placed = token_level_rewards(rows.mask, None, rewards)
    assert placed.scorable.all()
    assert torch.equal(placed.rewards, rows.token_rewards * rows.mask)


def test_nan_at_a_trained_place_is_not_hidden():
    rows = random_rows(2)
    row = int(rows.mask.sum(1).argmax())
    first = int(rows.mask[row].int().argmax())
    values = rows.values.clone()
    values[row, first] = torch.nan
    found = gae_advantages(rows.token_rewards, values, rows.mask)
    assert found[row, first].isnan()


def test_no_rows_and_no_width():
    empty = torch.empty(0, 4)
    assert gae_advantages(empty, empty, empty.bool()).shape == (0, 4)
    narrow = torch.empty(3, 0)
    assert gae_advantages(narrow, narrow, narrow.bool()).shape == (3, 0)
    assert discounted_sum(narrow, narrow.bool(), 0.5).shape == (3, 0)
    assert place_on_last_token(torch.ones(3), narrow.bool()).shape == (3, 0)


def test_inputs_stay_as_they_are():
    rows = random_rows(3)
    before = rows.token_rewards.clone(), rows.values.clone(), rows.mask.clone()
    gae_advantages(rows.token_rewards, rows.values, rows.mask, gamma=0.9, lam=0.9)
    assert all(map(torch.equal, before, (rows.token_rewards, rows.values, rows.mask)))


@pytest.mark.parametrize("seed", range(4))
def test_rewards_of_rows_are_placed_and_the_unscorable_told(seed):
    rows = random_rows(seed)
    found = token_level_rewards(rows.mask, rows.rewards, None)
    assert torch.equal(found.scorable, ~rows.rewards.isnan())
    expected = reference.placed(rows.rewards.nan_to_num(nan=0.0).tolist(), rows.mask.tolist())
    assert found.rewards.tolist() == expected


def test_a_nan_among_trained_token_rewards_makes_its_row_unscorable():
    mask = torch.tensor([[True, False, True], [True, True, False]])
    rewards = torch.tensor([[1.0, torch.nan, 2.0], [torch.nan, 1.0, 0.0]])
    found = token_level_rewards(mask, None, rewards)
    assert found.scorable.tolist() == [True, False]
    assert found.rewards.tolist() == [[1, 0, 2], [0, 0, 0]]


@pytest.mark.parametrize("both", [True, False])
def test_one_kind_of_reward_it_is(both):
    mask = torch.ones(1, 2).bool()
    given = (torch.ones(1), torch.ones(1, 2)) if both else (None, None)
    with pytest.raises(ValueError, match="both of" if both else "neither of"):
        token_level_rewards(mask, *given)


def test_large_batches_are_one_pass_over_the_width():
    draw = torch.Generator().manual_seed(0)
    mask = torch.rand(64, 2048, generator=draw) < 0.8
    rewards, values = (torch.randn(64, 2048, generator=draw) for _ in range(2))
    found = gae_advantages(rewards, values, mask, gamma=0.999, lam=0.95)
    some = slice(3, 5)
    expected = reference.gae(rewards[some].tolist(), values[some].tolist(), mask[some].tolist(), 0.999, 0.95)
    assert found[some].tolist() == close(expected, abs=2e-5)
