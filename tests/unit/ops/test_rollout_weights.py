import math

import pytest
import reference_losses as reference
import torch

from dagrl.data.metrics import merge_all
from dagrl.nodes import low_drift, rollout_correction
from dagrl.ops.aggregate import Denominators, aggregate
from dagrl.ops.drift import drift
from dagrl.ops.rollout_weights import accepted_tokens, bounded_weights, importance_weights

NAN, INF = math.nan, math.inf
OPTIONS = [
    {},
    {"high": None},
    {"high": 1.1},
    {"low": 0.9, "high": 1.1},
    {"low": 0.8, "high": 1.2, "outside": "mask"},
    {"level": "sequence"},
    {"level": "sequence", "high": 1.2, "normalize": True},
    {"level": "sequence", "low": 0.5, "high": 1.5, "outside": "mask", "normalize": True},
    {"normalize": True},
    {"reject_by": "k1", "reject_over": "token", "reject_above": 0.2, "reject_below": -0.2},
    {"reject_by": "k2", "reject_over": "row-mean", "reject_above": 0.05},
    {"reject_by": "k3", "reject_over": "row-max", "reject_above": 0.1},
    {"reject_by": "abs", "reject_over": "row-sum", "reject_above": 1.0},
    {"level": "none", "reject_by": "k3", "reject_over": "token", "reject_above": 0.02, "normalize": True},
    {"level": "sequence", "reject_by": "k3", "reject_over": "token", "reject_above": 0.05, "normalize": True},
]


def random_batch(seed):
    """Trainer and rollout log-probs, and a mask with holes and an empty row."""
    draw = torch.Generator().manual_seed(seed)
    mask = torch.rand(6, 7, generator=draw) < 0.7
    mask[0] = False
    old = -torch.randn(6, 7, generator=draw, dtype=torch.float64).abs()
    return old, old + 0.3 * torch.randn(6, 7, generator=draw, dtype=torch.float64), mask


def rows_of(column, mask):
    return [row[keep].double().tolist() for row, keep in zip(column, mask, strict=True)]


@pytest.mark.parametrize("seed", range(8))
@pytest.mark.parametrize("options", OPTIONS, ids=str)
@pytest.mark.parametrize("dtype", [torch.float64, torch.float32])
def test_matches_the_reference(seed, options, dtype):
    old, rollout, mask = random_batch(seed)
    old, rollout = old.to(dtype), rollout.to(dtype)
    weights, metrics = rollout_correction(rollout, old, mask, **options)
    expected, size, units = reference.correction(rows_of(old, mask), rows_of(rollout, mask), options)
    near = 1e-9 if dtype == torch.float64 else 1e-5
    assert weights.dtype == dtype
    assert weights[mask].tolist() == pytest.approx([weight for row in expected for weight in row], abs=near)
    assert not weights[~mask].any()
    assert metrics["rollout/ess"].sum == pytest.approx(size)
    assert metrics["rollout/ess"].count == units


@pytest.mark.parametrize("options", OPTIONS, ids=str)
@pytest.mark.parametrize("poison", [NAN, INF, -INF, -200.0])
@pytest.mark.parametrize("poisoned", [0, 1])
def test_masked_poison_changes_nothing(options, poison, poisoned):
    *log_probs, mask = random_batch(3)
    clean = rollout_correction(log_probs[1], log_probs[0], mask, **options)
    log_probs[poisoned] = log_probs[poisoned].masked_fill(~mask, poison)
    dirty = rollout_correction(log_probs[1], log_probs[0], mask, **options)
    assert torch.equal(dirty[0], clean[0])
    assert dirty[1].numbers() == clean[1].numbers()


@pytest.mark.parametrize("seed", range(8))
def test_drift_matches_the_reference_and_merges_over_rows(seed):
    old, rollout, mask = random_batch(seed)
    expected = reference.drift(rows_of(old, mask), rows_of(rollout, mask))
    whole = drift(old, rollout, mask)._asdict()
    assert {name: metric.value for name, metric in whole.items()} == pytest.approx(expected)
    parts = [drift(old[i], rollout[i], mask[i])._asdict() for i in (slice(0, 1), slice(1, 2), slice(2, 6))]
    assert merge_all(parts).numbers() == pytest.approx(expected)


def test_equal_policies_need_no_correction():
    old, _, mask = random_batch(0)
    for level in ("token", "sequence"):
        weights, metrics = rollout_correction(old, old, mask, level=level)
        assert torch.equal(weights, mask.to(old.dtype))
        numbers = metrics.numbers()
        assert all(numbers[f"rollout/{name}"] == 0 for name in ("kl", "kl_k3", "chi2_token", "chi2_sequence"))
        assert numbers["rollout/ess"] == numbers["rollout/ppl_ratio"] == numbers["rollout/weight"] == 1


LOGS = torch.tensor([[math.log(4.0), math.log(0.25), 0.0]])
ZEROS, ALL = torch.zeros(1, 3), torch.ones(1, 3).bool()


def test_truncation_and_masking_by_hand():
    raw = importance_weights(LOGS, ZEROS, ALL, "token")
    assert raw.tolist() == [pytest.approx([4.0, 0.25, 1.0])]
    assert bounded_weights(raw, ALL, low=0, high=2, outside="truncate").tolist() == [pytest.approx([2.0, 0.25, 1.0])]
    assert bounded_weights(raw, ALL, low=0.5, high=2, outside="mask").tolist() == [[0, 0, 1]]
    assert importance_weights(LOGS, ZEROS, ALL, "sequence").tolist() == [pytest.approx([1.0] * 3)]


def test_the_sequence_weight_is_the_product_not_the_mean():
    logs = torch.full((1, 3), math.log(1.2))
    assert importance_weights(logs, ZEROS, ALL, "sequence").tolist() == [pytest.approx([1.728] * 3)]


def test_drift_is_that_of_the_rollout_from_the_trainer():
    """k1 = -log rho: a token that the trainer finds less likely has a positive drift."""
    less = torch.tensor([[-1.0, 0.0, 1.0]])
    kept = accepted_tokens(less, ZEROS, ALL, kind="k1", over="token", above=0.5)
    assert kept.tolist() == [[False, True, True]]
    kept = accepted_tokens(less, ZEROS, ALL, kind="k1", over="token", below=-0.5)
    assert kept.tolist() == [[True, True, False]]
    assert not accepted_tokens(less, ZEROS, ALL, kind="k3", over="row-max", above=0.7).any()
    assert accepted_tokens(less, ZEROS, ALL, kind="k3", over="row-max", above=0.72).all()
    assert not accepted_tokens(less, ZEROS, ALL, kind="k3", over="row-mean", above=0.36).any()
    assert accepted_tokens(less, ZEROS, ALL, kind="k3", over="row-mean", above=0.37).all()


def test_a_rejected_token_keeps_its_place_in_the_denominators_unless_weights_are_normalised():
    losses = torch.tensor([[3.0, 5.0, 7.0]])
    options = {"level": "none", "reject_by": "abs", "reject_over": "token", "reject_above": 0.5}
    for normalize, loss in ((False, 7 / 3), (True, 7.0)):
        weights, _ = rollout_correction(ZEROS, LOGS, ALL, **options, normalize=normalize)
        total = aggregate(losses * weights, ALL, "token-mean", Denominators.of(ALL))
        assert total.item() == pytest.approx(loss)


def test_metrics_say_what_was_cut_and_rejected():
    old = torch.tensor([[math.log(4.0), 0.0], [0.0, 0.0], [9.0, 9.0]])
    mask = torch.tensor([[1, 1], [1, 0], [0, 0]]).bool()
    options = {"reject_by": "k3", "reject_above": 0.1}
    _, metrics = rollout_correction(torch.zeros(3, 2), old, mask, **options)
    numbers = metrics.numbers()
    assert numbers["rollout/outside_bounds"] == pytest.approx(1 / 3)
    assert numbers["rollout/rejected"] == pytest.approx(2 / 3)
    assert numbers["rollout/rejected_rows"] == 0.5
    assert numbers["rollout/weight"] == pytest.approx(1 / 3)
    assert (numbers["rollout/weight_max"], numbers["rollout/weight_min"]) == (pytest.approx(4.0), 1.0)
    assert numbers["rollout/ess"] == pytest.approx(1 / 3)


def test_where_everything_is_rejected_the_weights_are_zero_and_finite():
    weights, metrics = rollout_correction(
        ZEROS, LOGS, ALL, reject_by="k2", reject_above=0.01, reject_over="row-max", normalize=True
    )
    assert not weights.any()
    assert metrics["rollout/ess"].value == 0


def test_a_ratio_that_overflows_is_cut_not_hidden():
    huge = torch.tensor([[2000.0, 0.0, 0.0]])
    assert rollout_correction(ZEROS, huge, ALL)[0].tolist() == [[2, 1, 1]]
    assert rollout_correction(ZEROS, huge, ALL, outside="mask")[0].tolist() == [[0, 1, 1]]
    assert rollout_correction(ZEROS, huge, ALL, high=None)[0].tolist() == [[INF, 1, 1]]
    rejected = rollout_correction(ZEROS, huge, ALL, high=None, reject_by="k3", reject_over="token", reject_above=9.0)
    assert rejected[0].tolist() == [[0, 1, 1]]


@pytest.mark.parametrize("level", ["token", "sequence"])
@pytest.mark.parametrize("options", [{}, {"low": 0.5, "outside": "mask"}, {"normalize": True}])
def test_nan_at_a_trained_token_is_never_hidden(level, options):
    log_probs = LOGS.clone()
    log_probs[0, 0] = NAN
    for pair in ((ZEROS, log_probs), (log_probs, ZEROS)):
        weights, metrics = rollout_correction(*pair, ALL, level=level, **options)
        assert weights[0, 0].isnan()
        assert math.isnan(metrics["rollout/kl"].value)


def test_low_drift_drops_rows_and_keeps_empty_ones():
    old = torch.tensor([[1.0, 0.0], [0.1, 0.0], [9.0, 9.0]])
    mask = torch.tensor([[1, 1], [1, 1], [0, 0]]).bool()
    kept, metrics = low_drift(torch.zeros(3, 2), old, mask, above=0.05)
    assert kept.tolist() == [False, True, True]
    assert metrics.numbers() == {"low_drift/dropped": 1}
    assert low_drift(torch.zeros(3, 2), old, mask, above=0.05, over="row-max", by="k1")[0].tolist() == [True] * 3


@pytest.mark.parametrize(
    "call",
    [
        lambda: importance_weights(LOGS, ZEROS, ALL, "word"),
        lambda: bounded_weights(LOGS, ALL, low=2, high=1, outside="mask"),
        lambda: bounded_weights(LOGS, ALL, low=0, high=1, outside="clip"),
        lambda: accepted_tokens(LOGS, ZEROS, ALL, kind="k1", over="row"),
        lambda: accepted_tokens(LOGS, ZEROS, ALL, kind="k4", over="token"),
    ],
)
def test_options_that_make_no_sense_are_refused(call):
    with pytest.raises(ValueError, match=r"bounds|unknown"):
        call()
