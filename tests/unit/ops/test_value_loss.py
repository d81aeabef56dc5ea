import math
from math import nan

import pytest
import reference_losses as reference
import torch

from dagrl.nodes import value_clip
from dagrl.ops.value_loss import explained_variance, value_clip_loss

NAN, INF = math.nan, math.inf


def one(value, old, target, **options):
    """Loss, derivative and clip flag of one trained token."""
    values = torch.tensor([[value]], dtype=torch.float64, requires_grad=True)
    others = (torch.tensor([[x]], dtype=torch.float64) for x in (old, target))
    losses, clipped = value_clip_loss(values, *others, torch.tensor([[True]]), **options)
    losses.sum().backward()
    return losses.item(), values.grad.item(), clipped.item()


def test_the_larger_error_counts():
    assert one(1.0, 0.0, 2.0) == (pytest.approx(1.62), 0.0, True)
    assert one(1.0, 0.0, -2.0) == (pytest.approx(4.5), pytest.approx(3.0), False)
    assert one(0.1, 0.0, 2.0) == (pytest.approx(1.805), pytest.approx(-1.9), False)
    assert one(1.0, 0.0, 2.0, eps=None) == (pytest.approx(0.5), pytest.approx(-1.0), False)


def random_batch(seed):
    draw = torch.Generator().manual_seed(seed)
    mask = torch.rand(6, 7, generator=draw) < 0.7
    mask[0] = False
    columns = [torch.randn(6, 7, generator=draw, dtype=torch.float64) for _ in range(3)]
    columns[0][:, 3] = columns[1][:, 3]
    poison = torch.tensor([NAN, INF, -INF, -200.0], dtype=torch.float64)[torch.arange(7) % 4]
    return [torch.where(mask, x, poison.roll(shift)) for shift, x in enumerate(columns)], mask


@pytest.mark.parametrize("seed", range(20))
@pytest.mark.parametrize("eps", [0.2, 0.5, None])
@pytest.mark.parametrize("dtype", [torch.float64, torch.float32])
def test_matches_the_reference_with_poison_at_masked_tokens(seed, eps, dtype):
    columns, mask = random_batch(seed)
    values, old, returns = (column.to(dtype) for column in columns)
    values.requires_grad_()
    losses, clipped = value_clip_loss(values, old, returns, mask, eps=eps)
    losses.sum().backward()
    near = 1e-9 if dtype == torch.float64 else 1e-5
    for i, j in mask.nonzero().tolist():
        loss, slope, is_clipped = reference.value_clip(*(x[i, j].item() for x in (values, old, returns)), eps=eps)
        assert losses[i, j].item() == pytest.approx(loss, abs=near)
        assert values.grad[i, j].item() == pytest.approx(slope, abs=near)
        assert clipped[i, j].item() == is_clipped
    assert not losses[~mask].any()
    assert not values.grad[~mask].any()
    assert not clipped[~mask].any()


def test_a_value_within_the_range_is_never_clipped_by_rounding():
    draw = torch.Generator().manual_seed(0)
    old = torch.randn(50, 40, generator=draw)
    values, returns = old + 0.19 * (2 * torch.rand(50, 40, generator=draw) - 1), torch.randn(50, 40, generator=draw)
    losses, clipped = value_clip_loss(values, old, returns, torch.ones(50, 40).bool())
    assert not clipped.any()
    assert torch.equal(losses, (values - returns).square() / 2)


@pytest.mark.parametrize("where", range(3))
def test_nan_at_a_trained_token_is_never_hidden(where):
    given = [torch.zeros(1, 1), torch.zeros(1, 1), torch.ones(1, 1)]
    given[where] = torch.full((1, 1), NAN)
    assert value_clip_loss(*given, torch.ones(1, 1).bool())[0].isnan().all()


def test_a_negative_eps_is_refused():
    with pytest.raises(ValueError, match="eps is -1"):
        one(0.0, 0.0, 0.0, eps=-1)


def test_the_loss_reports_loss_clip_fraction_values_and_returns():
    values, mask = torch.tensor([[1.0, 9.0], [0.1, 0.0]]), torch.tensor([[True, False], [True, True]])
    losses, metrics = value_clip(values, torch.zeros(2, 2), torch.full((2, 2), 2.0), mask)
    assert losses[mask].tolist() == pytest.approx([1.62, 1.805, 2.0])
    assert metrics.numbers() == {
        "critic/value_loss": pytest.approx((1.62 + 1.805 + 2) / 3),
        "critic/clip_fraction": pytest.approx(1 / 3),
        "critic/values": pytest.approx(1.1 / 3),
        "critic/returns": pytest.approx(2.0),
        "critic/explained_variance": pytest.approx(nan, nan_ok=True),  # all returns are equal
    }


def test_explained_variance_of_values_that_have_diverged_is_no_error():
    values, returns = torch.tensor([[math.inf, -math.inf, 1.0]]), torch.tensor([[1.0, 2.0, 3.0]])
    assert math.isnan(explained_variance(values, returns, torch.ones(1, 3).bool()).value)
