"""Which groups differ in reward, against a scalar reference."""

import math

import pytest
import reference_dynamic_sampling as reference
import torch

from dagrl.ops.dynamic_sampling import mixed_rows

NAN, INF = math.nan, math.inf


@pytest.mark.parametrize("seed", range(20))
def test_against_the_reference_on_scattered_groups_of_any_size(seed: int) -> None:
    generator = torch.Generator().manual_seed(seed)
    group_ids = torch.randint(0, 9, (24,), generator=generator) * 7
    rewards = torch.randint(0, 2, (24,), generator=generator).float()
    rewards[torch.rand(24, generator=generator) < 0.3] = NAN
    expected = reference.mixed_rows(rewards.tolist(), group_ids.tolist())
    assert mixed_rows(rewards, group_ids).tolist() == expected
    assert 0 < sum(expected) < 24


@pytest.mark.parametrize(
    ("rewards", "group_ids", "expected"),
    [
        ([1.0, 0.0, 1.0, 1.0], [5, 5, 6, 6], [True, True, False, False]),
        ([1.0, 10.0, 0.0, 10.0], [2, 1, 2, 1], [True, False, True, False]),
        ([1.0, NAN, 0.0], [3, 3, 3], [True, True, True]),
        ([1.0, NAN, 1.0], [3, 3, 3], [False, False, False]),
        ([NAN, NAN], [3, 3], [False, False]),
        ([0.5, NAN, 2.0], [1, 1, 2], [False, False, False]),
        ([0.1, 0.1, 0.1], [0, 0, 0], [False] * 3),
        ([0.0, -INF, INF, INF], [0, 0, 1, 1], [True, True, False, False]),
        ([], [], []),
    ],
)
def test_by_hand(rewards: list[float], group_ids: list[int], expected: list[bool]) -> None:
    found = mixed_rows(torch.tensor(rewards), torch.tensor(group_ids, dtype=torch.int64))
    assert found.tolist() == expected
    assert found.dtype == torch.bool
    assert reference.mixed_rows(rewards, group_ids) == expected
