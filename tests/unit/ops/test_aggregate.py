import math

import pytest
import reference_ops as reference
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from dagrl.data.metrics import merge_all
from dagrl.ops.aggregate import AGG_MODES, Denominators, aggregate
from dagrl.ops.masks import max_metric, mean_metric, min_metric

steady = settings(deadline=None, derandomize=True)

NAN, INF = math.nan, math.inf
RAGGED = [[6.0], [1.0, 1.0, 1.0], [3.0]]
#: The token sums are 6, 3, 3 in 5 tokens of 3 rows; the norm is a constant length of 4.
EXPECTED = {
    "token-mean": 2.4,
    "token-sum": 12.0,
    "seq-mean-token-sum": 4.0,
    "seq-mean-token-mean": 10 / 3,
    "seq-mean-token-sum-norm": 1.0,
}
#: Means of micro-batch means (2.625, 3.75, 3.25) and the row means over the padded width (2.5).
USUAL_WRONG_ANSWERS = [2.625, 2.5, 3.75, 3.25]


def padded(rows, width, poison=NAN):
    losses = torch.tensor([row + [poison] * (width - len(row)) for row in rows], dtype=torch.float64)
    mask = torch.tensor([[j < len(row) for j in range(width)] for row in rows])
    return losses, mask


def shares(losses, mask, splits, mode, norm_length=None):
    denominators = Denominators.of(mask)
    parts = zip(losses.split(splits), mask.split(splits), strict=True)
    return [aggregate(part, m, mode, denominators, norm_length=norm_length) for part, m in parts]


@pytest.mark.parametrize("mode", AGG_MODES)
@pytest.mark.parametrize("width", [3, 4, 9])
@pytest.mark.parametrize("splits", [[3], [2, 1], [1, 2], [1, 1, 1]])
@pytest.mark.parametrize("poison", [0.0, NAN, INF])
def test_the_same_loss_and_gradient_for_every_split_and_width(mode, width, splits, poison):
    losses, mask = padded(RAGGED, width, poison)
    losses.requires_grad_()
    total = sum(shares(losses, mask, splits, mode, norm_length=4))
    total.backward()
    assert total.item() == pytest.approx(EXPECTED[mode], abs=1e-9)
    assert all(abs(total.item() - wrong) > 0.05 for wrong in USUAL_WRONG_ANSWERS)
    for got, weights in zip(losses.grad.tolist(), reference.token_weights(mask.tolist(), mode, 4), strict=True):
        assert got == pytest.approx(weights, abs=1e-12)


@pytest.mark.parametrize("splits", [[3], [2, 1], [1, 1, 1]])
@pytest.mark.parametrize("width", [3, 7])
def test_the_same_metrics_for_every_split_and_width(splits, width):
    losses, mask = padded(RAGGED, width)
    parts = [
        {"mean": mean_metric(loss, m), "max": max_metric(loss, m), "min": min_metric(loss, m)}
        for loss, m in zip(losses.split(splits), mask.split(splits), strict=True)
    ]
    assert merge_all(parts).numbers() == {"mean": pytest.approx(2.4), "max": 6.0, "min": 1.0}


@pytest.mark.parametrize("mode", AGG_MODES)
def test_ranks_with_different_widths_sum_to_the_whole(mode):
    """Rank 0 holds the first two rows at width 3, rank 1 the last one at width 1."""
    denominators = Denominators(tokens=5, rows=3)
    ranks = [padded(RAGGED[:2], 3), padded(RAGGED[2:], 1)]
    total = sum(aggregate(losses, mask, mode, denominators, norm_length=4) for losses, mask in ranks)
    assert total.item() == pytest.approx(EXPECTED[mode])


@pytest.mark.parametrize("mode", AGG_MODES)
def test_a_row_without_a_trained_token_changes_nothing(mode):
    losses, mask = padded([*RAGGED, []], 4)
    assert Denominators.of(mask) == Denominators(tokens=5, rows=3)
    assert sum(shares(losses, mask, [2, 2], mode, norm_length=4)).item() == pytest.approx(EXPECTED[mode])


@pytest.mark.parametrize("mode", AGG_MODES)
def test_a_mini_batch_without_a_trained_token_gives_zero_with_a_gradient(mode):
    losses, mask = padded([[], []], 3)
    losses.requires_grad_()
    total = aggregate(losses, mask, mode, Denominators.of(mask), norm_length=4)
    total.backward()
    assert total.item() == 0
    assert losses.grad.tolist() == [[0.0] * 3] * 2


@steady
@given(seed=st.integers(0, 10**6), rows=st.integers(1, 7), width=st.integers(1, 6), data=st.data())
def test_any_split_matches_the_reference(seed, rows, width, data):
    generator = torch.Generator().manual_seed(seed)
    mask = torch.rand(rows, width, generator=generator) < 0.6
    losses = torch.randn(rows, width, generator=generator, dtype=torch.float64).masked_fill(~mask, NAN)
    cut = data.draw(st.integers(0, rows))
    for mode in AGG_MODES:
        expected = reference.aggregate(losses.tolist(), mask.tolist(), mode, 5)
        got = sum(shares(losses, mask, [cut, rows - cut], mode, norm_length=5))
        assert got.item() == pytest.approx(expected, abs=1e-12)


def test_denominators_count_holes_and_rows():
    mask = torch.tensor([[1, 0, 1], [0, 0, 0], [0, 0, 1]], dtype=torch.bool)
    assert Denominators.of(mask) == Denominators(tokens=3, rows=2)
    assert Denominators.of(torch.empty(0, 3, dtype=torch.bool)) == Denominators(tokens=0, rows=0)


@pytest.mark.parametrize("mode", AGG_MODES)
def test_nan_at_a_trained_token_is_never_hidden(mode):
    mask = torch.ones(1, 2).bool()
    assert aggregate(torch.tensor([[NAN, 1.0]]), mask, mode, Denominators.of(mask), norm_length=4).isnan()


@pytest.mark.parametrize("norm_length", [None, 0, -4])
def test_the_constant_divisor_must_be_given(norm_length):
    losses, mask = padded(RAGGED, 4)
    with pytest.raises(ValueError, match="norm_length"):
        aggregate(losses, mask, "seq-mean-token-sum-norm", Denominators.of(mask), norm_length=norm_length)


def test_an_unknown_mode_is_refused():
    losses, mask = padded(RAGGED, 4)
    with pytest.raises(ValueError, match=r"mean-mean.*token-mean"):
        aggregate(losses, mask, "mean-mean", Denominators.of(mask))
