"""Whitening over everything unmasked, and the estimators of the whole batch that use it."""

from math import nan

import pytest
import reference_advantages as reference
import torch
from advantage_batches import POISONS, poisoned, random_rows
from reference_losses import penalized

from dagrl.nodes import kl_penalty, reinforce_pp_advantage, reinforce_pp_baseline_advantage, whiten_advantages
from dagrl.ops.advantages import whiten


def close(expected, abs=1e-6):
    return [pytest.approx(row, abs=abs) for row in expected]


@pytest.mark.parametrize("seed", range(8))
@pytest.mark.parametrize("normalize", [True, False])
def test_whiten_matches_the_reference(seed, normalize):
    rows = random_rows(seed)
    values = rows.token_rewards * 3 + 100
    found = whiten(values, rows.mask, normalize_by_std=normalize)
    expected = reference.whiten(values.tolist(), rows.mask.tolist(), normalize_by_std=normalize)
    assert found.tolist() == close(expected)
    single = whiten(values.float(), rows.mask, normalize_by_std=normalize)
    assert single.dtype == torch.float32
    assert single.tolist() == close(expected, abs=1e-4)


def test_statistics_are_float64():
    values = 4096 + torch.tensor([[0.0, 0.5, 1.0, 0.5]])
    assert whiten(values, torch.ones(1, 4).bool()).tolist() == close(
        reference.whiten(values.tolist(), [[True] * 4]), abs=1e-5
    )


def test_eps_is_added_to_the_unbiased_std():
    values, mask = torch.tensor([[1.0, 2.0, 3.0]]), torch.ones(1, 3).bool()
    assert whiten(values, mask, eps=1.0)[0].tolist() == pytest.approx([-0.5, 0, 0.5])


@pytest.mark.parametrize("poison", POISONS)
def test_masked_places_change_nothing(poison):
    rows = random_rows(4)
    assert torch.equal(whiten(poisoned(rows.values, rows.mask, poison), rows.mask), whiten(rows.values, rows.mask))


def test_degenerate_batches_are_zero():
    for values, mask in [
        (torch.tensor([[0.1, 0.1, 0.1]]), torch.ones(1, 3)),
        (torch.tensor([[5.0, nan]]), torch.tensor([[1, 0]])),
        (torch.tensor([[nan]]), torch.zeros(1, 1)),
        (torch.empty(0, 3), torch.empty(0, 3)),
        (torch.empty(2, 0), torch.empty(2, 0)),
    ]:
        for normalize in (True, False):
            found = whiten(values, mask.bool(), normalize_by_std=normalize)
            assert found.shape == values.shape
            assert not found.any()


def test_nan_at_an_unmasked_place_is_not_hidden():
    assert whiten(torch.tensor([[1.0, nan, 2.0]]), torch.ones(1, 3).bool()).isnan().all()


@pytest.mark.parametrize("seed", range(8))
@pytest.mark.parametrize("gamma", [1.0, 0.9])
def test_reinforce_pp_matches_the_reference(seed, gamma):
    rows = random_rows(seed)
    rewards, _, mask = rows.lists
    found, metrics = reinforce_pp_advantage(rows.mask, rows.rewards, gamma=gamma)
    assert found.tolist() == close(reference.reinforce_pp(rewards, mask, gamma))
    assert metrics.numbers() == {"advantage/unscorable_rows": rows.rewards.isnan().sum()}


@pytest.mark.parametrize("seed", range(8))
@pytest.mark.parametrize("gamma", [1.0, 0.9])
@pytest.mark.parametrize("poison", POISONS)
def test_reinforce_pp_of_token_rewards_matches_the_reference(seed, gamma, poison):
    rows = random_rows(seed)
    rewards = rows.token_rewards.clone()
    trained = rows.mask.nonzero()
    rewards[tuple(trained[seed])] = nan
    expected = reference.reinforce_pp_of_tokens(rewards.tolist(), rows.mask.tolist(), gamma)
    given = poisoned(rewards, rows.mask, poison)
    found, metrics = reinforce_pp_advantage(rows.mask, token_rewards=given, gamma=gamma)
    assert found.tolist() == close(expected)
    assert metrics.numbers() == {"advantage/unscorable_rows": 1}


@pytest.mark.parametrize("seed", range(8))
@pytest.mark.parametrize("kind", ["k1", "k3"])
def test_reinforce_pp_whitens_rewards_less_kl(seed, kind):
    """The paper's form: the outcome on the last token, less KL on each, summed from each token on and whitened."""
    rows, draw = random_rows(seed), torch.Generator().manual_seed(seed)
    old, ref = -torch.rand(2, *rows.mask.shape, generator=draw, dtype=torch.float64)
    paid, _ = kl_penalty(rows.rewards, old, ref, rows.mask, beta=0.3, kind=kind)
    found, _ = reinforce_pp_advantage(rows.mask, token_rewards=paid.token_rewards)
    priced = zip(rows.rewards.tolist(), old.tolist(), ref.tolist(), rows.mask.tolist(), strict=True)
    rewards = [penalized(*row, 0.3, kind)[0] for row in priced]
    assert found.tolist() == close(reference.reinforce_pp_of_tokens(rewards, rows.mask.tolist(), 1.0))


@pytest.mark.parametrize("seed", range(8))
def test_the_baseline_variant_matches_the_reference(seed):
    rows = random_rows(seed)
    found, _ = reinforce_pp_baseline_advantage(rows.rewards, rows.group_ids, rows.mask)
    assert found.tolist() == close(reference.reinforce_pp_baseline(*rows.lists))


def test_unscorable_rows_stay_zero_and_count_nowhere():
    mask = torch.ones(3, 2).bool()
    rewards = torch.tensor([1.0, nan, 3.0])
    expected = whiten(torch.tensor([[1.0, 1.0], [3.0, 3.0]]), mask[:2])
    for found in (
        reinforce_pp_advantage(mask, rewards)[0],
        whiten_advantages(torch.tensor([[1.0], [0.0], [3.0]]).expand(3, 2), mask, rewards),
        whiten_advantages(
            torch.tensor([[1.0], [0.0], [3.0]]).expand(3, 2), mask, token_rewards=rewards.unsqueeze(1).expand(3, 2)
        ),
    ):
        assert torch.allclose(found[[0, 2]], expected)
        assert not found[1].any()


def test_whiten_advantages_reads_no_masked_reward():
    mask = torch.tensor([[True, False], [True, True]])
    rewards = torch.tensor([[1.0, nan], [0.0, 2.0]])
    found = whiten_advantages(torch.tensor([[1.0, nan], [2.0, 3.0]]), mask, token_rewards=rewards)
    assert found.tolist() == close([[-1, 0], [0, 1]], abs=1e-5)
    centred = whiten_advantages(torch.tensor([[1.0, nan], [2.0, 3.0]]), mask, normalize_by_std=False)
    assert centred.tolist() == [[-1, 0], [0, 1]]


def test_a_group_of_one_leaves_the_batch_of_the_baseline_variant():
    mask = torch.ones(3, 1).bool()
    found, metrics = reinforce_pp_baseline_advantage(torch.tensor([1.0, 0.0, 9.0]), torch.tensor([1, 1, 2]), mask)
    assert found.flatten().tolist() == pytest.approx([0.70711, -0.70711, 0], abs=1e-5)
    assert metrics.numbers()["group/singletons"] == 1
