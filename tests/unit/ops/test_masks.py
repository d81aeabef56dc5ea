import math

import pytest
import reference_ops as reference
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

import dagrl.ops
from dagrl.data.metrics import Max, Mean, Min
from dagrl.ops.masks import (
    join_sequences,
    mask_from_lengths,
    masked_mean,
    masked_sum,
    max_metric,
    mean_metric,
    min_metric,
    pad_left,
    pad_right,
    position_ids,
    row_mean,
    where_masked,
)

steady = settings(deadline=None, derandomize=True)

NAN, INF = math.nan, math.inf
token_rows = st.lists(st.lists(st.integers(0, 9), max_size=5), min_size=1, max_size=4)


def random_case(seed, rows=5, width=6):
    """Values with poison at masked places, a mask with holes, one empty row."""
    generator = torch.Generator().manual_seed(seed)
    mask = torch.rand(rows, width, generator=generator) < 0.6
    mask[seed % rows] = False
    values = torch.randn(rows, width, generator=generator, dtype=torch.float64)
    poison = torch.tensor([NAN, INF, -INF, 1e30], dtype=torch.float64)[torch.arange(rows * width) % 4].view(rows, width)
    return torch.where(mask, values, poison), mask


@pytest.mark.parametrize(
    ("row", "pad", "ids", "mask"),
    [
        ([5, 2], 0, [5, 2, 0, 0], [1, 1, 0, 0]),
        ([5, 6], 0, [5, 6, 0, 0], [1, 1, 0, 0]),
        ([5, 6, 7, 8], 0, [5, 6, 7, 8], [1, 1, 1, 1]),
        ([], 0, [0, 0, 0, 0], [0, 0, 0, 0]),
        ([5, 3], 0, [5, 3, 0, 0], [1, 1, 0, 0]),
        ([5, 2], 2, [5, 2, 2, 2], [1, 1, 0, 0]),
        ([5, 6], 2, [5, 6, 2, 2], [1, 1, 0, 0]),
    ],
    ids=["finished", "cut", "full", "empty", "other eos", "pad is eos, finished", "pad is eos, cut"],
)
def test_responses_pad_right_and_the_mask_comes_from_lengths(row, pad, ids, mask):
    got, got_mask, lengths = pad_right([row], pad, width=4)
    assert got.tolist() == [ids]
    assert got_mask.tolist() == [[bool(m) for m in mask]]
    assert lengths.tolist() == [len(row)]
    assert got.dtype == lengths.dtype == torch.int64
    assert got_mask.dtype == torch.bool


def test_a_prompt_that_contains_the_pad_id_keeps_it():
    ids, mask = pad_left([[2, 5, 2], [7]], 2)
    assert ids.tolist() == [[2, 5, 2], [2, 2, 7]]
    assert mask.tolist() == [[True, True, True], [False, False, True]]
    assert ids.dtype == torch.int64


def test_mask_from_lengths():
    assert mask_from_lengths(torch.tensor([0, 1, 3]), 3).int().tolist() == [[0, 0, 0], [1, 0, 0], [1, 1, 1]]
    assert mask_from_lengths(torch.tensor([0, 0]), 0).shape == (2, 0)


@steady
@given(rows=token_rows, pad=st.integers(0, 9), extra=st.integers(0, 2))
def test_padding_loses_and_invents_nothing(rows, pad, extra):
    width = max(map(len, rows)) + extra
    left, left_mask = pad_left(rows, pad, width=width)
    right, right_mask, lengths = pad_right(rows, pad, width=width)
    assert left.shape == right.shape == (len(rows), width)
    for i, row in enumerate(rows):
        assert left[i][left_mask[i]].tolist() == right[i][right_mask[i]].tolist() == row
        assert left[i, : width - len(row)].tolist() == right[i, len(row) :].tolist() == [pad] * (width - len(row))
    assert lengths.tolist() == [len(row) for row in rows]


def test_no_rows_and_no_tokens():
    assert pad_left([], 0)[0].shape == (0, 0)
    assert pad_right([[], []], 0)[1].shape == (2, 0)


def test_a_row_longer_than_the_width_is_refused():
    with pytest.raises(ValueError, match="3 tokens, more than the width of 2"):
        pad_right([[1, 2, 3]], 0, width=2)
    with pytest.raises(ValueError, match="3 tokens, more than the width of 2"):
        pad_left([[1, 2, 3]], 0, width=2)


def test_left_padding_does_not_count_as_a_position():
    mask = torch.tensor([[0, 0, 1, 1, 1, 1], [1, 1, 1, 1, 0, 0], [0, 0, 0, 0, 0, 0]], dtype=torch.bool)
    assert position_ids(mask).tolist() == [[0, 0, 0, 1, 2, 3], [0, 1, 2, 3, 3, 3], [0] * 6]
    assert position_ids(mask).dtype == torch.int64


@steady
@given(st.lists(st.lists(st.booleans(), min_size=5, max_size=5), min_size=1, max_size=4))
def test_positions_match_the_reference(mask):
    assert position_ids(torch.tensor(mask)).tolist() == reference.position_ids(mask)


def test_join_sequences():
    prompt_ids, prompt_mask = pad_left([[7, 8], [9]], 0)
    responses, _, lengths = pad_right([[5, 2], [6]], 2, width=3)
    ids, attention, positions = join_sequences(prompt_ids, prompt_mask, responses, lengths)
    assert ids.tolist() == [[7, 8, 5, 2, 2], [0, 9, 6, 2, 2]]
    assert attention.int().tolist() == [[1, 1, 1, 1, 0], [0, 1, 1, 0, 0]]
    assert positions.tolist() == [[0, 1, 2, 3, 3], [0, 0, 1, 1, 1]]


@steady
@given(prompts=token_rows, left=st.integers(0, 3), right=st.integers(0, 3))
def test_a_rows_tokens_and_positions_do_not_depend_on_widths(prompts, left, right):
    replies = [row[::-1] for row in prompts]
    width = max(map(len, prompts))
    prompt_ids, prompt_mask = pad_left(prompts, 0, width=width + left)
    responses, _, lengths = pad_right(replies, 0, width=width + right)
    ids, attention, positions = join_sequences(prompt_ids, prompt_mask, responses, lengths)
    for i, (prompt, reply) in enumerate(zip(prompts, replies, strict=True)):
        assert ids[i][attention[i]].tolist() == prompt + reply
        assert positions[i][attention[i]].tolist() == list(range(len(prompt + reply)))


@pytest.mark.parametrize("seed", range(20))
def test_reductions_match_the_reference_and_ignore_poison(seed):
    values, mask = random_case(seed)
    kept = [v for row, m in zip(values.tolist(), mask.tolist(), strict=True) for v in reference.trained(row, m)]
    assert masked_sum(values, mask).item() == pytest.approx(math.fsum(kept), abs=1e-12)
    assert masked_mean(values, mask).item() == pytest.approx(math.fsum(kept) / len(kept), abs=1e-12)
    rows = reference.row_mean(values.tolist(), mask.tolist())
    assert row_mean(values, mask).tolist() == pytest.approx(rows, abs=1e-12)
    sums = [mean * sum(row) for mean, row in zip(rows, mask.tolist(), strict=True)]
    assert masked_sum(values, mask, 1).tolist() == pytest.approx(sums, abs=1e-12)
    assert mean_metric(values, mask).sum == pytest.approx(math.fsum(kept), abs=1e-12)
    assert mean_metric(values, mask).count == len(kept)
    assert max_metric(values, mask) == Max(max(kept))
    assert min_metric(values, mask) == Min(min(kept))


@pytest.mark.parametrize("seed", range(5))
def test_row_mean_gradient_is_one_over_the_rows_tokens(seed):
    values, mask = random_case(seed)
    values.requires_grad_()
    row_mean(values, mask).sum().backward()
    counts = [sum(row) for row in mask.tolist()]
    expected = [[1 / n if keep else 0.0 for keep in row] for row, n in zip(mask.tolist(), counts, strict=True)]
    assert values.grad.tolist() == expected


def test_row_mean_of_an_empty_row_is_zero_and_the_package_exports_it():
    assert dagrl.ops.row_mean is row_mean
    values = torch.tensor([[NAN, INF], [2.0, NAN]])
    assert row_mean(values, torch.tensor([[False, False], [True, False]])).tolist() == [0.0, 2.0]
    assert masked_mean(values, torch.zeros(2, 2, dtype=torch.bool)).item() == 0.0


@pytest.mark.parametrize("poison", [NAN, INF, -INF, 200.0])
def test_where_masked_before_exp_keeps_the_gradient_finite(poison):
    values = torch.tensor([1.0, poison], requires_grad=True)
    (where_masked(values, torch.tensor([True, False])).exp() * 2).sum().backward()
    assert values.grad.tolist() == [pytest.approx(2 * math.e), 0.0]


def test_where_masked_keeps_the_dtype_and_fills():
    mask = torch.tensor([True, False])
    assert where_masked(torch.tensor([3, 4]), mask).tolist() == [3, 0]
    assert where_masked(torch.tensor([3, 4]), mask).dtype == torch.int64
    assert where_masked(torch.tensor([3.0, NAN]), mask, -1.5).tolist() == [3.0, -1.5]


def test_metrics_of_nothing_are_neutral():
    values, nothing = torch.tensor([NAN, 3.0]), torch.tensor([False, False])
    assert mean_metric(values, nothing) == Mean(0.0, 0)
    assert max_metric(values, nothing).merge(Max(-5.0)) == Max(-5.0)
    assert min_metric(values, nothing).merge(Min(5.0)) == Min(5.0)
    assert max_metric(torch.empty(0, 3), torch.empty(0, 3, dtype=torch.bool)) == Max(-INF)
    assert min_metric(torch.empty(0, 3), torch.empty(0, 3, dtype=torch.bool)) == Min(INF)


def test_nan_at_a_trained_place_is_never_hidden():
    values, mask = torch.tensor([[1.0, NAN]]), torch.tensor([[True, True]])
    assert math.isnan(masked_sum(values, mask))
    assert math.isnan(row_mean(values, mask))
    assert all(math.isnan(metric(values, mask).value) for metric in (mean_metric, max_metric, min_metric))


def test_metric_sums_are_float64():
    values = torch.tensor([1e8] + [1.0] * 100, dtype=torch.float32)
    assert mean_metric(values, torch.ones(101, dtype=torch.bool)).sum == 1e8 + 100
    assert mean_metric(torch.tensor([True, False, True]), torch.tensor([True, True, False])) == Mean(1.0, 2)


def test_metrics_are_detached_numbers():
    values = torch.ones(2, requires_grad=True) * 2
    mask = torch.tensor([True, True])
    assert [type(m(values, mask).value) for m in (mean_metric, max_metric, min_metric)] == [float] * 3


@pytest.mark.parametrize("seed", range(5))
def test_metrics_of_any_split_merge_to_the_whole(seed):
    values, mask = random_case(seed)
    for metric in (mean_metric, max_metric, min_metric):
        whole = metric(values, mask).value
        for cut in range(1, 5):
            parts = metric(values[:cut], mask[:cut]).merge(metric(values[cut:], mask[cut:]))
            assert parts.value == pytest.approx(whole, abs=1e-12)
