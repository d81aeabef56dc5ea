import math

import pytest
import reference_ops as reference
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from dagrl.data.metrics import Mean
from dagrl.ops.advantages import NO_GROUP, group_statistics, grpo_advantages, rloo_advantages, spread_to_tokens

steady = settings(deadline=None, derandomize=True)

NAN = math.nan
scored_rows = st.lists(
    st.tuples(st.sampled_from([0.0, 0.5, 1.0, -2.0, NAN]), st.sampled_from([0, 3, 7, 10**12])), min_size=1, max_size=12
)


def advantages(rewards, ids, **options):
    return grpo_advantages(torch.tensor(rewards, dtype=torch.float32), torch.tensor(ids), **options).tolist()


def close(expected):
    return pytest.approx(expected, abs=1e-5)


@pytest.mark.parametrize(
    ("rewards", "ids", "expected"),
    [
        ([1, 0, 0, 0], [4, 4, 4, 4], [1.5, -0.5, -0.5, -0.5]),
        ([1, 10, 0, 10], [1, 2, 1, 2], [0.70711, 0, -0.70711, 0]),
        ([1, 0, 0, 5], [1, 1, 1, 2], [1.1547, -0.57735, -0.57735, 0]),
        ([1, NAN, 0], [1, 1, 1], [0.70711, 0, -0.70711]),
        ([NAN, NAN], [1, 1], [0, 0]),
        ([NAN, 1], [1, 1], [0, 0]),
    ],
    ids=["one right", "interleaved groups", "group of one", "unscorable", "all unscorable", "one scorable"],
)
def test_grpo(rewards, ids, expected):
    assert advantages(rewards, ids) == close(expected)


def test_without_std_is_dr_grpo():
    assert advantages([1, 0, 0, 0], [0] * 4, normalize_by_std=False) == close([0.75, -0.25, -0.25, -0.25])
    assert advantages([5, NAN, 1], [0, 1, 1], normalize_by_std=False) == [0, 0, 0]


@pytest.mark.parametrize("normalize", [True, False])
def test_equal_rewards_give_exactly_zero(normalize):
    assert advantages([0.1] * 7, [3] * 7, normalize_by_std=normalize) == [0.0] * 7
    assert advantages([0.1] * 7, [3] * 7, normalize_by_std=normalize, eps=0.0) == [0.0] * 7


def test_eps_is_added_to_the_std():
    assert advantages([1, 1.00001], [0, 0]) == pytest.approx([-0.619601, 0.619601], abs=1e-5)
    assert advantages([1, 0, 0, 0], [0] * 4, eps=0.5) == close([0.75, -0.25, -0.25, -0.25])


def test_group_ids_use_all_64_bits():
    assert advantages([1, 0, 5, 3], [1, 1, 1 + 2**32, 1 + 2**32]) == close([0.70711, -0.70711, 0.70711, -0.70711])


def test_statistics_are_float64():
    assert advantages([4096.0, 4096.001, 4096.0, 4096.001], [0] * 4) == close(
        reference.grpo_advantages(torch.tensor([4096.0, 4096.001, 4096.0, 4096.001]).tolist(), [0] * 4)
    )


def test_dtype_and_empty_batch():
    result = grpo_advantages(torch.ones(2), torch.tensor([1, 2]))
    assert result.dtype == torch.float32
    assert grpo_advantages(torch.empty(0), torch.empty(0, dtype=torch.int64)).shape == (0,)
    assert group_statistics(torch.empty(0), torch.empty(0, dtype=torch.int64)).num_groups == 0


@steady
@given(rows=scored_rows, normalize=st.booleans())
def test_matches_the_reference_on_scattered_groups(rows, normalize):
    rewards, ids = map(list, zip(*rows, strict=True))
    expected = reference.grpo_advantages(rewards, ids, normalize_by_std=normalize)
    assert advantages(rewards, ids, normalize_by_std=normalize) == close(expected)


@pytest.mark.parametrize(("dtype", "near"), [(torch.float32, 1e-5), (torch.float64, 1e-6)])
@pytest.mark.parametrize("seed", range(20))
def test_matches_the_reference_on_random_rewards(seed, dtype, near):
    generator = torch.Generator().manual_seed(seed)
    rewards = torch.randn(40, generator=generator, dtype=dtype)
    rewards[torch.rand(40, generator=generator) < 0.2] = NAN
    ids = torch.randint(-3, 9, (40,), generator=generator) * 10**10
    for normalize in (True, False):
        got = grpo_advantages(rewards, ids, normalize_by_std=normalize)
        expected = reference.grpo_advantages(rewards.tolist(), ids.tolist(), normalize_by_std=normalize)
        assert got.dtype == dtype
        assert got.tolist() == pytest.approx(expected, abs=near)


@steady
@given(rows=scored_rows, data=st.data())
def test_row_order_does_not_matter(rows, data):
    order = data.draw(st.permutations(range(len(rows))))
    rewards, ids = map(list, zip(*rows, strict=True))
    straight = advantages(rewards, ids)
    shuffled = advantages([rewards[i] for i in order], [ids[i] for i in order])
    assert shuffled == close([straight[i] for i in order])


@steady
@given(scored_rows)
def test_statistics_match_the_reference(rows):
    rewards, ids = map(list, zip(*rows, strict=True))
    got = group_statistics(torch.tensor(rewards), torch.tensor(ids))
    expected = reference.group_statistics(rewards, ids)
    counts = ("num_groups", "num_singletons", "num_uniform", "num_unscorable")
    assert {name: getattr(got, name) for name in counts} == {name: expected[name] for name in counts}
    assert got.std.sum == pytest.approx(expected["std_sum"], abs=1e-12)
    assert got.std.count == expected["std_count"]


def test_statistics_by_hand():
    rewards = torch.tensor([1.0, 5.0, 0.0, 2.0, NAN, 2.0, NAN, 3.0])
    ids = torch.tensor([1, 2, 1, 3, 3, 3, 4, 4])
    got = group_statistics(rewards, ids)
    assert got[:4] == (4, 2, 1, 2)
    assert got.std == Mean(pytest.approx(math.sqrt(0.5)), 2)
    assert math.isnan(group_statistics(torch.tensor([1.0]), torch.tensor([1])).std.value)


def test_spread_to_tokens():
    mask = torch.tensor([[1, 1, 0, 0], [0, 0, 1, 1], [0, 0, 0, 0]], dtype=torch.bool)
    got = spread_to_tokens(torch.tensor([2.0, 2.0, NAN]), mask)
    assert got.tolist() == [[2, 2, 0, 0], [0, 0, 2, 2], [0, 0, 0, 0]]
    assert got.dtype == torch.float32
    hole = spread_to_tokens(torch.tensor([3.0]), torch.tensor([[True, False, True]]))
    assert hole.tolist() == [[3, 0, 3]]


@steady
@given(scored_rows, st.lists(st.tuples(st.sampled_from([0.0, 1.0, -2.0, NAN]), st.integers(0, 12)), max_size=5))
def test_rows_of_no_group_count_nowhere(rows, padding):
    mixed = [*rows]
    for reward, place in padding:
        mixed.insert(place, (reward, NO_GROUP))
    rewards, ids = (torch.tensor(column) for column in zip(*mixed, strict=True))
    real = ids != NO_GROUP
    for function in (grpo_advantages, rloo_advantages):
        found = function(rewards, ids)
        assert torch.equal(found[real], function(rewards[real], ids[real]))
        assert not found[~real].any()
    counted, alone = group_statistics(rewards, ids), group_statistics(rewards[real], ids[real])
    assert counted == alone
