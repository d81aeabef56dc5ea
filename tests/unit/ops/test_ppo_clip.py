import math

import pytest
import reference_ops as reference
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from dagrl.ops.masks import max_metric, mean_metric, row_mean
from dagrl.ops.ppo_clip import ppo_clip_loss

steady = settings(deadline=None, derandomize=True)

NAN, INF = math.nan, math.inf


def at_ratio(ratio, advantage, **options):
    """Loss, derivative and clip flag of one trained token."""
    logprobs = torch.tensor([[math.log(ratio)]], dtype=torch.float64, requires_grad=True)
    zeros = torch.zeros(1, 1, dtype=torch.float64)
    losses, clipped = ppo_clip_loss(logprobs, zeros, zeros + advantage, torch.ones(1, 1).bool(), **options)
    losses.sum().backward()
    return losses.item(), logprobs.grad.item(), clipped.item()


@pytest.mark.parametrize(
    ("ratio", "advantage", "loss", "gradient", "clipped"),
    [
        (1.5, 1, -1.2, 0, True),
        (1.5, -1, 1.5, 1.5, False),
        (0.5, 1, -0.5, -0.5, False),
        (0.5, -1, 0.8, 0, True),
        (1, 1, -1, -1, False),
    ],
)
def test_clip(ratio, advantage, loss, gradient, clipped):
    assert at_ratio(ratio, advantage) == (pytest.approx(loss), pytest.approx(gradient), clipped)


def test_dual_clip_stops_a_large_ratio_with_a_negative_advantage():
    assert at_ratio(5, -1, dual_clip=3.0) == (pytest.approx(3), 0, False)
    assert at_ratio(5, -1) == (pytest.approx(5), pytest.approx(5), False)
    assert at_ratio(2.9, -1, dual_clip=3.0) == (pytest.approx(2.9), pytest.approx(2.9), False)
    assert at_ratio(5, 1, dual_clip=3.0) == (pytest.approx(-1.2), 0, True)
    assert at_ratio(0.5, -1, dual_clip=3.0) == (pytest.approx(0.8), 0, True)


def test_clip_higher_moves_the_upper_bound_only():
    assert at_ratio(1.25, 1, eps_high=0.28) == (pytest.approx(-1.25), pytest.approx(-1.25), False)
    assert at_ratio(1.25, 1) == (pytest.approx(-1.2), 0, True)
    assert at_ratio(0.75, -1, eps_high=0.28) == (pytest.approx(0.8), 0, True)
    assert at_ratio(0.75, -1, eps_low=0.3) == (pytest.approx(0.75), pytest.approx(0.75), False)


def random_batch(seed, rows=6, width=7):
    generator = torch.Generator().manual_seed(seed)

    def normal():
        return torch.randn(rows, width, generator=generator, dtype=torch.float64)

    mask = torch.rand(rows, width, generator=generator) < 0.7
    mask[0] = False
    poison = torch.tensor([NAN, INF, -INF, -200.0], dtype=torch.float64)[torch.arange(width) % 4]
    old, advantages = normal() - 2, normal()
    logprobs = old + 0.5 * normal()
    advantages[:, 2] = 0.0
    return tuple(torch.where(mask, x, poison.roll(i)) for i, x in enumerate((logprobs, old, advantages))), mask


@pytest.mark.parametrize("seed", range(20))
@pytest.mark.parametrize(
    "options", [{}, {"eps_low": 0.1, "eps_high": 0.3}, {"dual_clip": 1.4}, {"eps_high": 0.28, "dual_clip": 3.0}]
)
def test_matches_the_reference_with_poison_at_masked_tokens(seed, options):
    (logprobs, old, advantages), mask = random_batch(seed)
    logprobs.requires_grad_()
    losses, clipped = ppo_clip_loss(logprobs, old, advantages, mask, **options)
    losses.sum().backward()
    for i, j in torch.cartesian_prod(torch.arange(mask.shape[0]), torch.arange(mask.shape[1])).tolist():
        got = losses[i, j].item(), logprobs.grad[i, j].item(), clipped[i, j].item()
        inputs = [x[i, j].item() for x in (logprobs, old, advantages)]
        expected = reference.ppo(*inputs, **options) if mask[i, j] else (0.0, 0.0, False)
        assert got == (pytest.approx(expected[0], abs=1e-9), pytest.approx(expected[1], abs=1e-9), expected[2])


@steady
@given(st.floats(-3, 3), st.floats(-2, 2), st.sampled_from([None, 1.5, 3.0]))
def test_matches_the_reference_anywhere(log_ratio, advantage, dual_clip):
    got = at_ratio(math.exp(log_ratio), advantage, dual_clip=dual_clip)
    expected = reference.ppo(math.log(math.exp(log_ratio)), 0.0, advantage, dual_clip=dual_clip)
    assert got == (pytest.approx(expected[0], abs=1e-9), pytest.approx(expected[1], abs=1e-9), expected[2])


def test_on_policy_the_ratio_is_exactly_one():
    generator = torch.Generator().manual_seed(0)
    logprobs = (-9 * torch.rand(4, 8, generator=generator)).requires_grad_()
    advantages = torch.randn(4, 8, generator=generator)
    losses, clipped = ppo_clip_loss(logprobs, logprobs, advantages, torch.ones(4, 8).bool(), dual_clip=1.1, eps_low=0.0)
    losses.sum().backward()
    assert torch.equal(losses, -advantages)
    assert torch.equal(logprobs.grad, -advantages)
    assert not clipped.any()


@pytest.mark.parametrize("poison", [NAN, -INF, -200.0, INF])
def test_masked_poison(poison):
    logprobs = torch.zeros(1, 2, requires_grad=True)
    mask = torch.tensor([[True, False]])
    losses, clipped = ppo_clip_loss(logprobs, torch.tensor([[0.0, poison]]), torch.ones(1, 2), mask)
    losses.sum().backward()
    assert losses.tolist() == [[-1, 0]]
    assert logprobs.grad.tolist() == [[-1, 0]]
    assert mean_metric(clipped, mask).value == 0
    assert max_metric(losses, mask).value == -1


@pytest.mark.parametrize("advantage", [1.0, -1.0])
def test_a_stopped_ratio_that_overflows_leaves_the_gradient_finite(advantage):
    logprobs = torch.tensor([[100.0]], requires_grad=True)
    losses, _ = ppo_clip_loss(
        logprobs, torch.zeros(1, 1), torch.tensor([[advantage]]), torch.ones(1, 1).bool(), dual_clip=3.0
    )
    losses.sum().backward()
    assert losses.item() == pytest.approx(-1.2 if advantage > 0 else 3.0)
    assert logprobs.grad.item() == 0


@pytest.mark.parametrize("where", range(3))
def test_nan_at_a_trained_token_is_never_hidden(where):
    inputs = [torch.zeros(1, 1), torch.zeros(1, 1), torch.ones(1, 1)]
    inputs[where] = torch.full((1, 1), NAN)
    losses, _ = ppo_clip_loss(*inputs, torch.ones(1, 1).bool(), dual_clip=3.0)
    assert losses.isnan().all()


def test_a_sequence_ratio_is_the_exp_of_the_rows_mean():
    log_ratio = torch.tensor([[0.3, -0.1, 0.1], [0.3, -0.1, 0.1]])
    with_fourth = torch.cat([log_ratio, torch.tensor([[9.0], [NAN]])], dim=1)
    mask = torch.tensor([[True, True, True, False]] * 2)
    assert row_mean(log_ratio, mask[:, :3]).exp().tolist() == pytest.approx([1.105171] * 2, abs=1e-5)
    assert row_mean(with_fourth, mask).exp().tolist() == pytest.approx([1.105171] * 2, abs=1e-5)


@pytest.mark.parametrize(
    ("options", "named"),
    [({"dual_clip": 1.0}, "dual_clip"), ({"eps_low": -0.1}, "eps_low"), ({"eps_high": -1}, "eps_high")],
)
def test_options_that_make_no_sense_are_refused(options, named):
    with pytest.raises(ValueError, match=named):
        at_ratio(1, 1, **options)
