import math

import pytest
import reference_ops as reference
import torch

from dagrl.nodes import gspo
from dagrl.ops.aggregate import Denominators, aggregate
from dagrl.ops.sequence_ratio import gmpo_loss, gspo_loss

NAN, INF = math.nan, math.inf
PAPER = {"eps_low": 3e-4, "eps_high": 4e-4}


def row(log_ratios, advantage=1.0, mask=None, **options):
    """Loss of a row under seq-mean-token-mean, derivative at each token, clip flags."""
    ratios = torch.tensor([log_ratios], dtype=torch.float64, requires_grad=True)
    keep = torch.ones_like(ratios).bool() if mask is None else torch.tensor([mask]).bool()
    advantages = torch.full_like(ratios, advantage)
    losses, clipped = gspo_loss(ratios, torch.zeros_like(ratios), advantages, keep, **options)
    loss = aggregate(losses, keep, "seq-mean-token-mean", Denominators.of(keep))
    loss.backward()
    return loss.item(), ratios.grad[0].tolist(), clipped[0].tolist()


def test_the_ratio_is_that_of_the_sequence():
    loss, gradient, clipped = row([0.3, -0.1, 0.1], eps_high=0.2)
    assert loss == pytest.approx(-1.105171, abs=1e-6)
    assert gradient == pytest.approx([-1.105171 / 3] * 3, abs=1e-6)
    assert clipped == [False] * 3


@pytest.mark.parametrize("fourth", [9.0, NAN, INF, -INF, -200.0])
def test_a_masked_fourth_value_changes_nothing(fourth):
    loss, gradient, clipped = row([0.3, -0.1, 0.1, fourth], mask=[1, 1, 1, 0], eps_high=0.2)
    assert loss == pytest.approx(-1.105171, abs=1e-6)
    assert gradient == pytest.approx([-1.105171 / 3] * 3 + [0.0], abs=1e-6)
    assert clipped == [False] * 4


@pytest.mark.parametrize(
    ("ratio", "advantage", "loss", "slope", "clipped"),
    [
        (1.5, 1, -1.2, 0, True),
        (1.5, -1, 1.5, 1.5, False),
        (0.5, 1, -0.5, -0.5, False),
        (0.5, -1, 0.8, 0, True),
        (1, 1, -1, -1, False),
    ],
)
def test_clips_whole_rows(ratio, advantage, loss, slope, clipped):
    logs = [math.log(ratio) + shift for shift in (0.4, -0.4)]
    got = row(logs, advantage, eps_low=0.2, eps_high=0.2)
    assert got == (pytest.approx(loss), pytest.approx([slope / 2] * 2), [clipped] * 2)


def test_the_papers_bounds_are_the_defaults():
    assert row([3.9e-4])[2] == row([-2.9e-4], -1.0)[2] == [False]
    assert row([4.1e-4])[2] == row([-3.1e-4], -1.0)[2] == [True]
    assert row([1.0])[0] == pytest.approx(-1.0004)
    assert row([-1.0], -1.0)[0] == pytest.approx(0.9997)


@pytest.mark.parametrize("seed", range(20))
@pytest.mark.parametrize("options", [{}, {"eps": 0.1, "eps_high": 0.3}])
def test_matches_the_reference_with_poison_at_masked_tokens(seed, options):
    generator = torch.Generator().manual_seed(seed)
    mask = torch.rand(6, 7, generator=generator) < 0.7
    mask[0] = False
    old = torch.randn(6, 7, generator=generator, dtype=torch.float64) - 2
    logprobs = old + torch.randn(6, 7, generator=generator, dtype=torch.float64) * (0.3 if options else 1e-3)
    advantages = torch.randn(6, 1, generator=generator, dtype=torch.float64).expand(6, 7).clone()
    advantages[1] = 0.0
    poison = torch.tensor([NAN, INF, -INF, -200.0], dtype=torch.float64)[torch.arange(7) % 4]
    given = [torch.where(mask, x, poison.roll(shift)) for shift, x in enumerate((logprobs, old, advantages))]
    given[0].requires_grad_()
    renamed = {"eps_low": options["eps"], "eps_high": options["eps_high"]} if options else {}
    losses, clipped = gspo_loss(*given, mask, **renamed)
    total = aggregate(losses, mask, "seq-mean-token-mean", Denominators.of(mask))
    total.backward()
    rows = [
        reference.gspo(logprobs[i].tolist(), old[i].tolist(), advantages[i, 0].item(), mask[i].tolist(), **options)
        for i in range(6)
    ]
    num_rows = int(mask.any(1).sum())
    assert total.item() == pytest.approx(sum(loss for loss, _, _ in rows) / num_rows, abs=1e-9)
    for i, (_, slopes, row_clipped) in enumerate(rows):
        assert given[0].grad[i].tolist() == pytest.approx([slope / num_rows for slope in slopes], abs=1e-9)
        assert clipped[i].tolist() == [row_clipped and keep for keep in mask[i].tolist()]


def test_on_policy_the_ratio_is_exactly_one():
    logprobs = (-9 * torch.rand(4, 8, generator=torch.Generator().manual_seed(0))).requires_grad_()
    advantages = torch.tensor([[1.0], [-1.0], [0.5], [2.0]]).expand(4, 8)
    mask = torch.ones(4, 8).bool()
    losses, metrics = gspo(logprobs, logprobs.detach(), advantages, mask)
    losses.sum().backward()
    assert torch.equal(losses, -advantages)
    assert torch.allclose(logprobs.grad, -advantages)
    numbers = metrics.numbers()
    assert numbers["actor/clip_fraction"] == numbers["actor/clipped_rows"] == numbers["actor/old_kl"] == 0


def test_a_stopped_ratio_that_overflows_leaves_the_gradient_finite():
    assert row([1000.0, 1000.0])[1] == [0.0, 0.0]
    assert row([NAN, 0.0])[0] != row([NAN, 0.0])[0]


def test_metrics_count_rows_and_tokens():
    new = torch.tensor([[0.5, 0.5, 0.0], [0.0, 0.0, 0.0], [7.0, 7.0, 7.0]])
    mask = torch.tensor([[1, 1, 0], [1, 1, 1], [0, 0, 0]]).bool()
    _, metrics = gspo(new, torch.zeros(3, 3), torch.ones(3, 3), mask)
    assert metrics.numbers() == pytest.approx(
        {"actor/clip_fraction": 0.4, "actor/clipped_rows": 0.5, "actor/old_kl": -0.2, "actor/pg_loss": -1.00016}
    )


def test_a_negative_eps_is_refused():
    with pytest.raises(ValueError, match="eps_low"):
        row([0.0], eps_low=-0.1)


def test_each_tokens_loss_pulls_on_its_own_token():
    logprobs = torch.tensor([[0.3, -0.1, 0.1]], requires_grad=True)
    losses, _ = gspo_loss(logprobs, torch.zeros(1, 3), torch.full((1, 3), 2.0), torch.ones(1, 3).bool(), eps_high=0.2)
    losses[0, 0].backward()
    assert logprobs.grad.tolist() == [pytest.approx([-2 * 1.105171, 0, 0], abs=1e-6)]


def test_a_masked_token_of_a_row_whose_ratio_overflows_adds_nothing():
    loss, gradient, _ = row([1000.0, 1000.0, 0.0], mask=[1, 1, 0])
    assert loss == pytest.approx(-1.0004)
    assert gradient == [0.0] * 3


@pytest.mark.parametrize("loss", [gspo_loss, gmpo_loss])
def test_a_weight_acts_on_its_own_token_alone(loss):
    logprobs = torch.full((1, 2), -1.0, requires_grad=True)
    mask = torch.ones(1, 2).bool()
    losses, _ = loss(logprobs, logprobs.detach(), torch.ones(1, 2), mask)
    weighted = losses * torch.tensor([[1.0, 0.0]])
    aggregate(weighted, mask, "seq-mean-token-mean", Denominators.of(mask)).backward()
    assert logprobs.grad.tolist() == [[-0.5, 0.0]]
