"""The optimal token baseline against a loop over groups, tokens and rows."""

from math import exp, log, nan

import pytest
import reference_advantages as reference
import torch
from advantage_batches import POISONS, poisoned, random_rows

from dagrl.nodes import otb_advantage
from dagrl.ops.advantages import NO_GROUP, discounted_sum, otb_advantages, score_norms

SEEDS = pytest.mark.parametrize("seed", range(8))


def close(expected, abs=1e-6):
    return [pytest.approx(row, abs=abs) for row in expected]


def logprobs_of(rows):
    return -rows.values.abs() - 0.01


@SEEDS
def test_otb_matches_the_reference(seed):
    rows = random_rows(seed)
    scorable = ~rows.rewards.isnan()
    norms = score_norms(logprobs_of(rows))
    found = otb_advantages(rows.token_rewards, norms, rows.group_ids, rows.mask, scorable)
    expected = reference.otb(
        rows.token_rewards.tolist(), norms.tolist(), rows.group_ids.tolist(), rows.mask.tolist(), scorable.tolist()
    )
    assert found.tolist() == close(expected)


@SEEDS
def test_the_node_takes_outcomes_or_token_rewards(seed):
    rows = random_rows(seed)
    logprobs, scorable = logprobs_of(rows), ~rows.rewards.isnan()
    found, metrics = otb_advantage(logprobs.float(), rows.group_ids, rows.mask, rows.rewards.float())
    outcomes = rows.rewards.nan_to_num(nan=0.0)
    returns = reference.reward_to_go(reference.placed(outcomes.tolist(), rows.mask.tolist()), rows.mask.tolist(), 1.0)
    norms = [[(1 - value) ** 2 for value in row] for row in logprobs.exp().tolist()]
    expected = reference.otb(returns, norms, rows.group_ids.tolist(), rows.mask.tolist(), scorable.tolist())
    assert found.tolist() == close(expected, abs=1e-5)
    assert metrics.numbers()["group/unscorable_rows"] == (~scorable).sum()
    of_tokens, _ = otb_advantage(logprobs, rows.group_ids, rows.mask, token_rewards=rows.token_rewards)
    returns = discounted_sum(rows.token_rewards, rows.mask, 1.0)
    all_rows = torch.ones_like(scorable)
    expected = otb_advantages(returns, score_norms(logprobs), rows.group_ids, rows.mask, all_rows)
    assert torch.equal(of_tokens, expected.float())


@SEEDS
def test_squares_and_rollout_weights_scale_what_a_token_adds(seed):
    rows = random_rows(seed)
    logprobs = logprobs_of(rows)
    draw = torch.Generator().manual_seed(seed)
    squares, weights = (torch.rand(logprobs.shape, generator=draw, dtype=torch.float64) for _ in range(2))
    weights = 3 * weights * (weights > 0.3)
    given = [poisoned(column, rows.mask, nan) for column in (squares, weights)]
    found, _ = otb_advantage(
        logprobs,
        rows.group_ids,
        rows.mask,
        token_rewards=rows.token_rewards,
        sum_pi_squared=given[0],
        rollout_weights=given[1],
    )
    norms = [
        [max(0.0, 1 - 2 * exp(one) + square) * weight**2 for one, square, weight in zip(*of_row, strict=True)]
        for of_row in zip(logprobs.tolist(), squares.tolist(), weights.tolist(), strict=True)
    ]
    returns = reference.reward_to_go(rows.token_rewards.tolist(), rows.mask.tolist(), 1.0)
    everyone = [True] * len(rows.mask)
    expected = reference.otb(returns, norms, rows.group_ids.tolist(), rows.mask.tolist(), everyone)
    assert found.tolist() == close(expected, abs=1e-5)


@pytest.mark.parametrize("probabilities", [[0.7, 0.2, 0.1], [0.98, 0.01, 0.01], [1 / 3] * 3])
def test_the_score_norm_is_that_of_the_logit_gradient(probabilities):
    logprobs = [log(p) for p in probabilities]
    squares = torch.tensor([[sum(p * p for p in probabilities)]], dtype=torch.float64)
    for chosen in range(3):
        truth = reference.score_norm(logprobs, chosen)
        old = torch.tensor([[logprobs[chosen]]], dtype=torch.float64)
        assert float(score_norms(old, squares)) == pytest.approx(truth, abs=1e-12)
        alone = float(score_norms(old))
        assert alone <= truth <= 2 * alone + 1e-12


def test_by_hand():
    """Two answers of two tokens, norms .25 .25 and 1 0: gathered .25 .5 and 1 1."""
    norms = torch.tensor([[0.25, 0.25], [1.0, 0.0]], dtype=torch.float64)
    returns = torch.tensor([[1.0, 1.0], [0.0, 0.0]], dtype=torch.float64)
    both = torch.ones(2).bool()
    found = otb_advantages(returns, norms, torch.tensor([3, 3]), torch.ones(2, 2).bool(), both)
    assert found.tolist() == close([[0.8, 2 / 3], [-0.2, -1 / 3]])


def test_tool_output_does_not_shift_a_row():
    norms = torch.tensor([[0.25, 9.0, 0.25], [1.0, 0.0, 9.0]], dtype=torch.float64)
    returns = torch.tensor([[1.0, 5.0, 1.0], [0.0, 0.0, 5.0]], dtype=torch.float64)
    mask = torch.tensor([[True, False, True], [True, True, False]])
    found = otb_advantages(returns, norms, torch.tensor([3, 3]), mask, torch.ones(2).bool())
    assert found.tolist() == close([[0.8, 0, 2 / 3], [-0.2, -1 / 3, 0]])


def test_degenerate_tokens():
    mask = torch.tensor([[True, True], [True, False]])
    norms, ids, both = torch.ones(2, 2), torch.tensor([3, 3]), torch.ones(2).bool()
    alone = otb_advantages(torch.tensor([[1.0, 1.0], [0.0, 0.0]]), norms, ids, mask, both)
    assert alone[:, 1].tolist() == [0, 0]
    equal = otb_advantages(torch.full((2, 2), 0.1), norms * 0.3, ids, mask, both)
    assert not equal.any()
    certain = otb_advantages(torch.tensor([[1.0, 1.0], [0.0, 0.0]]), norms * 0, ids, mask, both)
    assert certain[:, 0].tolist() == [0.5, -0.5]
    nobody = otb_advantages(torch.ones(2, 2), norms, torch.tensor([NO_GROUP] * 2), mask, both)
    assert not nobody.any()
    padding = otb_advantages(
        torch.tensor([[1.0, 1], [0, 0], [7, 7]]),
        torch.ones(3, 2),
        torch.tensor([3, 3, NO_GROUP]),
        torch.ones(3, 2).bool(),
        torch.ones(3).bool(),
    )
    assert padding.tolist() == [[0.5, 0.5], [-0.5, -0.5], [0, 0]]
    for shape in ((0, 3), (2, 0)):
        empty = torch.empty(shape)
        found = otb_advantages(empty, empty, torch.zeros(shape[0]).long(), empty.bool(), torch.ones(shape[0]).bool())
        assert found.shape == shape


@pytest.mark.parametrize("poison", POISONS)
def test_masked_places_change_nothing(poison):
    rows = random_rows(5)
    logprobs = logprobs_of(rows)
    plain, _ = otb_advantage(logprobs, rows.group_ids, rows.mask, token_rewards=rows.token_rewards)
    found, _ = otb_advantage(
        poisoned(logprobs, rows.mask, poison),
        rows.group_ids,
        rows.mask,
        token_rewards=poisoned(rows.token_rewards, rows.mask, poison),
        sum_pi_squared=None,
    )
    assert torch.equal(found, plain)


def test_nan_at_a_trained_place_is_not_hidden():
    logprobs = torch.tensor([[nan, -1.0], [-1.0, -1.0]])
    found, _ = otb_advantage(logprobs, torch.tensor([3, 3]), torch.ones(2, 2).bool(), torch.tensor([1.0, 0.0]))
    assert found.isnan().all()
