import math
import random

import pytest
import reference_losses as reference
import torch

from dagrl.ops.advantages import place_on_last_token
from dagrl.ops.kl_penalty import adapted_beta, penalized_rewards

NAN, INF = math.nan, math.inf


def random_batch(seed):
    draw = torch.Generator().manual_seed(seed)
    mask = torch.rand(6, 7, generator=draw) < 0.6
    mask[0] = False
    mask[1] = torch.arange(7) < 4
    old = -torch.randn(6, 7, generator=draw, dtype=torch.float64).abs()
    ref = old + 0.4 * torch.randn(6, 7, generator=draw, dtype=torch.float64)
    poison = torch.tensor([NAN, INF, -INF, -200.0], dtype=torch.float64)[torch.arange(7) % 4]
    logprobs = [torch.where(mask, x, poison.roll(shift)) for shift, x in enumerate((old, ref))]
    return torch.randn(6, generator=draw, dtype=torch.float64), *logprobs, mask


@pytest.mark.parametrize("seed", range(10))
@pytest.mark.parametrize("kind", ["k1", "k2", "k3", "abs"])
@pytest.mark.parametrize("dtype", [torch.float64, torch.float32])
def test_matches_the_reference_with_poison_at_masked_tokens(seed, kind, dtype):
    *columns, mask = random_batch(seed)
    rewards, old, ref = (column.to(dtype) for column in columns)
    result = penalized_rewards(rewards, old, ref, mask, beta=0.3, kind=kind)
    near = 1e-9 if dtype == torch.float64 else 1e-5
    for row in range(6):
        tokens, kl = reference.penalized(
            rewards[row].item(), old[row].tolist(), ref[row].tolist(), mask[row].tolist(), 0.3, kind
        )
        assert result.token_rewards[row].tolist() == pytest.approx(tokens, abs=near)
        assert result.row_kl[row].item() == pytest.approx(kl, abs=near)
        assert result.row_rewards[row].item() == pytest.approx(rewards[row].item() - 0.3 * kl, abs=near)
    assert result.token_rewards.dtype == result.row_rewards.dtype == dtype


def test_the_outcome_reward_sits_on_the_last_trained_token():
    mask = torch.tensor([[1, 1, 0], [1, 0, 1], [0, 0, 0], [0, 1, 0]]).bool()
    placed = place_on_last_token(torch.tensor([1.0, 2.0, 3.0, 4.0]), mask)
    assert placed.tolist() == [[0, 1, 0], [0, 0, 2], [0, 0, 0], [0, 4, 0]]


def test_an_unscorable_reward_stays_so_and_an_empty_row_keeps_its_own():
    mask = torch.tensor([[1, 1], [1, 1], [0, 0]]).bool()
    old, ref = torch.full((3, 2), -1.0), torch.full((3, 2), -2.0)
    result = penalized_rewards(torch.tensor([1.0, NAN, 5.0]), old, ref, mask, beta=0.5)
    assert result.token_rewards[0].tolist() == [-0.5, 0.5]
    assert result.token_rewards[1, 1].isnan()
    assert result.token_rewards[2].tolist() == [0, 0]
    assert result.row_rewards[::2].tolist() == [0, 5]
    assert result.row_rewards[1].isnan()


def test_the_controller_by_hand():
    assert adapted_beta(0.2, 0.3, target=0.1, num_rows=100, horizon=10_000) == pytest.approx(0.2004)
    assert adapted_beta(0.2, 0.0, target=0.1, num_rows=100, horizon=10_000) == pytest.approx(0.1996)
    assert adapted_beta(0.2, 0.11, target=0.1, num_rows=100, horizon=10_000) == pytest.approx(0.2 * 1.001)
    assert adapted_beta(0.2, 0.1, target=0.1, num_rows=100, horizon=10_000) == 0.2
    assert adapted_beta(0.2, NAN, target=0.1, num_rows=0, horizon=10_000) == 0.2


def test_a_horizon_that_could_turn_the_penalty_around_is_refused():
    """Of 64 rows a horizon of 12 takes off 107 % of the coefficient in one step."""
    with pytest.raises(ValueError, match=r"`horizon` is 12, and a step has 64 rows: it must be above 12\.8"):
        adapted_beta(0.2, 0.0, target=0.1, num_rows=64, horizon=12)
    assert adapted_beta(0.2, 0.0, target=0.1, num_rows=64, horizon=13) > 0


@pytest.mark.parametrize("seed", range(20))
def test_the_controller_against_its_reference_over_steps(seed):
    draw = random.Random(seed)
    target, horizon = draw.uniform(0.01, 6), draw.randint(103, 20_000)  # above a fifth of the rows
    found = expected = draw.uniform(1e-3, 1)
    for _ in range(30):
        measured, num_rows = draw.choice([target, draw.gauss(0, 2 * target), 0.0]), draw.randint(0, 512)
        found = adapted_beta(found, measured, target=target, num_rows=num_rows, horizon=horizon)
        expected = reference.adapted_beta(expected, measured, target, num_rows, horizon)
        assert found == pytest.approx(expected, rel=1e-9)


@pytest.mark.parametrize("value", [math.nan, -math.inf])
@pytest.mark.parametrize("which", [0, 1])
def test_a_log_prob_that_is_not_there_is_not_hidden_in_the_reward(which: int, value: float) -> None:
    logprobs = [torch.full((2, 2), -1.0), torch.full((2, 2), -2.0)]
    mask = torch.tensor([[True, True], [True, False]])
    logprobs[which][1, 1] = value  # masked
    assert penalized_rewards(torch.ones(2), *logprobs, mask, beta=0.1).row_rewards.isfinite().all()
    logprobs[which][0, 1] = value
    with pytest.raises(ValueError, match="the KL of 1 trained tokens is not finite"):
        penalized_rewards(torch.ones(2), *logprobs, mask, beta=0.1)
