"""ReMax against a reference that writes every sum out."""

from math import nan

import pytest
import reference_advantages as reference
import torch
from advantage_batches import POISONS, poisoned, random_rows

from dagrl.nodes import remax_advantage

SEEDS = pytest.mark.parametrize("seed", range(8))
#: The node's advantages are fp32, whatever arrives.
DTYPES = pytest.mark.parametrize("dtype", [torch.float32, torch.float64])


def close(expected):
    return [pytest.approx(row, abs=1e-6) for row in expected]


def baselines_of(seed, size=18):
    draw = torch.Generator().manual_seed(100 + seed)
    baselines = torch.randn(size, generator=draw, dtype=torch.float64)
    baselines[torch.rand(size, generator=draw) < 0.15] = nan
    return baselines


@SEEDS
@DTYPES
def test_outcome_rewards(seed, dtype):
    rows, baselines = random_rows(seed), baselines_of(seed)
    rewards, _, mask = rows.lists
    found, metrics = remax_advantage(baselines.to(dtype), rows.mask, rows.rewards.to(dtype))
    assert found.tolist() == close(reference.remax(rewards, baselines.tolist(), mask))
    lost = sum(a != a or b != b for a, b in zip(rewards, baselines.tolist(), strict=True))
    assert list(metrics.numbers().values()) == [lost]


@SEEDS
@DTYPES
@pytest.mark.parametrize("poison", POISONS)
def test_token_rewards(seed, dtype, poison):
    rows, baselines = random_rows(seed), baselines_of(seed)
    given = poisoned(rows.token_rewards, rows.mask, poison).to(dtype)
    found, _ = remax_advantage(baselines.to(dtype), rows.mask, token_rewards=given)
    expected = reference.remax_of_tokens(rows.token_rewards.tolist(), baselines.tolist(), rows.mask.tolist())
    assert found.tolist() == close(expected)
