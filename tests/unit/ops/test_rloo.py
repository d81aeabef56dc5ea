import math

import pytest
import reference_ops as reference
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from dagrl.nodes import rloo_advantage
from dagrl.ops.advantages import rloo_advantages

NAN = math.nan
scored_rows = st.lists(
    st.tuples(st.sampled_from([0.0, 0.5, 1.0, -2.0, NAN]), st.sampled_from([0, 3, 7, 10**12])), min_size=1, max_size=12
)


def advantages(rewards, ids):
    return rloo_advantages(torch.tensor(rewards, dtype=torch.float32), torch.tensor(ids)).tolist()


@pytest.mark.parametrize(
    ("rewards", "ids", "expected"),
    [
        ([1, 0, 0, 0], [4, 4, 4, 4], [1, -1 / 3, -1 / 3, -1 / 3]),
        ([0.2, 0.4, 0.9], [1, 1, 1], [-0.45, -0.15, 0.6]),
        ([1, 10, 0, 10], [1, 2, 1, 2], [1, 0, -1, 0]),
        ([1, NAN, 0], [1, 1, 1], [1, 0, -1]),
        ([NAN, NAN, 3], [1, 1, 2], [0, 0, 0]),
    ],
    ids=["one right", "three", "interleaved groups", "unscorable", "nothing to compare"],
)
def test_rloo(rewards, ids, expected):
    assert advantages(rewards, ids) == pytest.approx(expected, abs=1e-6)


def test_equal_rewards_give_exactly_zero():
    assert advantages([0.1] * 7, [3] * 7) == [0.0] * 7


@settings(deadline=None, derandomize=True)
@given(scored_rows)
def test_matches_the_reference_on_scattered_groups(rows):
    rewards, ids = map(list, zip(*rows, strict=True))
    assert advantages(rewards, ids) == pytest.approx(reference.rloo_advantages(rewards, ids), abs=1e-5)


@pytest.mark.parametrize(("dtype", "near"), [(torch.float32, 1e-5), (torch.float64, 1e-6)])
@pytest.mark.parametrize("seed", range(10))
def test_matches_the_reference_on_random_rewards(seed, dtype, near):
    generator = torch.Generator().manual_seed(seed)
    rewards = torch.randn(40, generator=generator, dtype=dtype)
    rewards[torch.rand(40, generator=generator) < 0.2] = NAN
    ids = torch.randint(-3, 9, (40,), generator=generator) * 10**10
    got = rloo_advantages(rewards, ids)
    assert got.dtype == dtype
    assert got.tolist() == pytest.approx(reference.rloo_advantages(rewards.tolist(), ids.tolist()), abs=near)


def test_the_node_spreads_to_trained_tokens_and_counts_groups():
    mask = torch.tensor([[True, False, True], [True, True, False], [True, True, True]])
    found, metrics = rloo_advantage(torch.tensor([1.0, 0.0, 5.0]), torch.tensor([1, 1, 2]), mask)
    assert found.tolist() == [[1, 0, 1], [-1, -1, 0], [0, 0, 0]]
    assert metrics.numbers() == {"group/uniform_share": 0, "group/singletons": 1, "group/unscorable_rows": 0}


def test_outside_a_pipeline_too_there_is_no_std():
    with pytest.raises(ValueError, match="not normalised by the standard deviation"):
        rloo_advantage(torch.zeros(1), torch.zeros(1).long(), torch.ones(1, 1).bool(), normalize_by_std=True)
