"""MaxRL, OPO, GPG, pass@k and GDPO against references that write every sum and every subset out."""

from math import comb, nan, sqrt

import pytest
import reference_advantages as reference
import torch
from advantage_batches import random_rows

from dagrl.nodes import gdpo_advantage, gpg_advantage, reinforce
from dagrl.ops.advantages import (
    NO_GROUP,
    gdpo_advantages,
    gpg_advantages,
    grpo_advantages,
    grpo_passk_advantages,
    maxrl_advantages,
    opo_advantages,
    pass_at_k_advantages,
)
from dagrl.ops.aggregate import Denominators, aggregate

SEEDS = pytest.mark.parametrize("seed", range(8))


def close(expected, abs=1e-6):
    return pytest.approx(expected, abs=abs)


def per_row(function, rewards, ids=None, **options):
    ids = [0] * len(rewards) if ids is None else ids
    return function(torch.tensor(rewards, dtype=torch.float64), torch.tensor(ids), **options).tolist()


@SEEDS
@pytest.mark.parametrize("binary", [True, False])
def test_maxrl(seed, binary):
    rows = random_rows(seed, binary=binary)
    rewards = rows.rewards.abs()
    expected = reference.maxrl(rewards.tolist(), rows.group_ids.tolist())
    assert maxrl_advantages(rewards, rows.group_ids).tolist() == close(expected)
    single = maxrl_advantages(rewards.float(), rows.group_ids)
    assert single.dtype == torch.float32
    assert single.tolist() == close(expected, abs=1e-5)


def test_maxrl_of_no_success_and_of_negative_rewards():
    assert per_row(maxrl_advantages, [0, 0, 0]) == [0, 0, 0]
    assert per_row(maxrl_advantages, [nan, 1, 0]) == [0, 1, -1]
    with pytest.raises(ValueError, match=r"none may be negative, but one is -0\.5"):
        per_row(maxrl_advantages, [1, -0.5])


@SEEDS
def test_opo(seed):
    rows = random_rows(seed)
    rewards, ids, mask = rows.lists
    expected = reference.opo(rewards, ids, [sum(row) for row in mask])
    assert opo_advantages(rows.rewards, rows.group_ids, rows.mask.sum(1)).tolist() == close(expected)
    single = opo_advantages(rows.rewards.float(), rows.group_ids, rows.mask.sum(1))
    assert single.tolist() == close(expected, abs=1e-5)


def test_opo_of_rows_without_trained_tokens_and_of_equal_rewards():
    lengths = torch.tensor([0, 5])
    assert per_row(opo_advantages, [1, 0], lengths=lengths) == [1, 0]
    assert per_row(opo_advantages, [1, 0], lengths=lengths * 0) == [1, 0]
    assert per_row(opo_advantages, [0.1] * 3, lengths=torch.tensor([1, 2, 5])) == [0, 0, 0]


@SEEDS
@pytest.mark.parametrize("normalize", [True, False])
@pytest.mark.parametrize("binary", [True, False])
def test_gpg(seed, normalize, binary):
    rows = random_rows(seed, binary=binary)
    rewards, ids, mask = rows.lists
    expected = reference.gpg(rewards, ids, [any(row) for row in mask], normalize_by_std=normalize)
    trained = rows.mask.any(1)
    found = gpg_advantages(rows.rewards, rows.group_ids, trained, normalize_by_std=normalize)
    assert found.tolist() == close(expected)
    assert gpg_advantages(rows.rewards.float(), rows.group_ids, trained).dtype == torch.float32


def gpg(rewards, ids, trained=None):
    trained = [1] * len(rewards) if trained is None else trained
    return per_row(gpg_advantages, rewards, ids, trained=torch.tensor(trained).bool())


def test_gpg_makes_up_for_uniform_groups():
    assert gpg([1, 0, 1, 1], [1, 1, 2, 2]) == [1, -1, 0, 0]
    assert gpg([1, 1, 0, 0], [1, 1, 2, 2]) == [0, 0, 0, 0]
    assert gpg([1, 0, nan], [1, 1, 1]) == close([0.75, -0.75, 0])
    assert gpg([1, 0, 7, nan], [1, 1, NO_GROUP, NO_GROUP]) == [0.5, -0.5, 0, 0]
    assert gpg([], []) == []


def test_gpg_counts_rows_as_the_loss_does():
    """A row without a trained token is in no denominator, so nothing has to make up for it."""
    assert gpg([1, 0, 1, 1], [1, 1, 2, 2], [1, 1, 0, 0]) == [0.5, -0.5, 0, 0]
    assert gpg([1, 0, 1, 1], [1, 1, 2, 2], [1, 1, 1, 0]) == close([0.75, -0.75, 0, 0])
    assert gpg([1, 0, 1, 1], [1, 1, 2, 2], [0, 1, 1, 1]) == close([0, -1.5, 0, 0])
    assert gpg([1, 0, 1, 1], [1, 1, 2, 2], [0, 0, 1, 1]) == [0, 0, 0, 0]


@pytest.mark.parametrize("mode", ["seq-mean-token-mean", "seq-mean-token-sum"])
def test_uniform_groups_and_empty_rows_do_not_change_the_loss_of_gpg(mode):
    """The mixed group alone, and beside groups that teach nothing: one loss."""
    mask = torch.tensor([[1, 1], [1, 0], [1, 1], [1, 1], [0, 0], [0, 0]]).bool()
    rewards, ids = torch.tensor([1.0, 0.0, 1.0, 1.0, 0.0, 1.0]), torch.tensor([1, 1, 2, 2, 3, 3])
    logprobs = torch.tensor([-0.5, -2.0]).expand(6, 2)
    losses = []
    for rows in (2, 4, 6):
        advantages, _ = gpg_advantage(rewards[:rows], ids[:rows], mask[:rows])
        tokens, _ = reinforce(logprobs[:rows], advantages, mask[:rows])
        losses.append(aggregate(tokens, mask[:rows], mode, Denominators.of(mask[:rows])).item())
    assert losses == close([losses[0]] * 3)
    assert losses[0] != 0


@SEEDS
@pytest.mark.parametrize("k", [1, 2, 3, 4])
@pytest.mark.parametrize("binary", [True, False])
def test_pass_at_k_counts_every_subset(seed, k, binary):
    rows = random_rows(seed, binary=binary)
    rewards, ids, _ = rows.lists
    expected = reference.pass_at_k(rewards, ids, k)
    assert pass_at_k_advantages(rows.rewards, rows.group_ids, k=k).tolist() == close(expected)
    single = pass_at_k_advantages(rows.rewards.float(), rows.group_ids, k=k)
    assert single.dtype == torch.float32
    assert single.tolist() == close(expected, abs=1e-5)


@pytest.mark.parametrize(("n", "right", "k"), [(4, 1, 2), (8, 3, 4), (32, 5, 4), (64, 1, 16)])
def test_pass_at_k_of_right_and_wrong_is_the_closed_form(n, right, k):
    wrong = n - right
    mean = 1 - comb(wrong, k) / comb(n, k)
    std = sqrt(mean * (1 - mean))
    found = per_row(pass_at_k_advantages, [1.0] * right + [0.0] * wrong, k=k, eps=0.0)
    assert found[:right] == close([(1 - mean) / std] * right)
    assert found[right:] == close([(1 - mean - comb(wrong - 1, k - 1) / comb(n - 1, k - 1)) / std] * wrong)


def test_pass_at_k_of_small_groups():
    assert per_row(pass_at_k_advantages, [1, 0], k=2) == [0, 0]
    assert per_row(pass_at_k_advantages, [1, 0, nan], k=2) == [0, 0, 0]
    assert per_row(pass_at_k_advantages, [0.1] * 5, k=2) == [0] * 5
    assert per_row(pass_at_k_advantages, [1, 0, 7, 8, 9], [1, 1, *[NO_GROUP] * 3], k=1, eps=0.0) == [1, -1, 0, 0, 0]
    # three of four right: a subset of two always holds one
    assert per_row(pass_at_k_advantages, [1, 1, 1, 0], k=2) == [0] * 4


@SEEDS
@pytest.mark.parametrize("normalize", [True, False])
@pytest.mark.parametrize("binary", [True, False])
def test_grpo_passk(seed, normalize, binary):
    rows = random_rows(seed, binary=binary)
    rewards, ids, _ = rows.lists
    expected = reference.grpo_passk(rewards, ids, normalize_by_std=normalize)
    found = grpo_passk_advantages(rows.rewards, rows.group_ids, normalize_by_std=normalize)
    assert found.tolist() == close(expected)
    assert found[found != 0].shape == rows.group_ids[found != 0].unique().shape
    single = grpo_passk_advantages(rows.rewards.float(), rows.group_ids, normalize_by_std=normalize)
    assert single.dtype == torch.float32
    assert single.tolist() == close(expected, abs=1e-5)


def test_grpo_passk_teaches_the_best_alone():
    assert per_row(grpo_passk_advantages, [0.2, 1.0, 0.7, 0.1], normalize_by_std=False) == close([0, 0.3, 0, 0])
    assert per_row(grpo_passk_advantages, [1, 0, 0, 0]) == close([2, 0, 0, 0], abs=1e-5)
    assert per_row(grpo_passk_advantages, [-3, -1, -2], normalize_by_std=False) == [0, 1, 0]
    assert per_row(grpo_passk_advantages, [5, 1, 2, 0], [1, 2, 1, 2], normalize_by_std=False) == [3, 1, 0, 0]


def test_grpo_passk_where_there_is_no_lead():
    assert per_row(grpo_passk_advantages, [1, 1, 0]) == [0, 0, 0]
    assert per_row(grpo_passk_advantages, [0.1] * 7) == [0] * 7
    assert per_row(grpo_passk_advantages, [3, 1], [1, 2]) == [0, 0]
    assert per_row(grpo_passk_advantages, [nan, 1]) == [0, 0]
    assert per_row(grpo_passk_advantages, [nan, 1, 0], normalize_by_std=False) == [0, 1, 0]
    assert per_row(grpo_passk_advantages, [9, 1, 7], [NO_GROUP] * 3) == [0, 0, 0]
    assert per_row(grpo_passk_advantages, []) == []


LENGTHS = torch.arange(3, 21)
FUNCTIONS = {
    "maxrl": lambda rewards, ids, lengths: maxrl_advantages(rewards.abs(), ids),
    "opo": opo_advantages,
    "gpg": lambda rewards, ids, lengths: gpg_advantages(rewards, ids, lengths > 5),
    "grpo_passk": lambda rewards, ids, lengths: grpo_passk_advantages(rewards, ids),
    "pass_at_k": lambda rewards, ids, lengths: pass_at_k_advantages(rewards, ids, k=2),
    "gdpo": lambda rewards, ids, lengths: gdpo_advantages(
        torch.stack([rewards, lengths.double()], 1), ids, torch.tensor([1.0, 0.3])
    ),
}


@SEEDS
@pytest.mark.parametrize("name", FUNCTIONS)
def test_rows_may_come_in_any_order_and_padding_rows_count_nowhere(seed, name):
    rows, function = random_rows(seed), FUNCTIONS[name]
    plain = function(rows.rewards, rows.group_ids, LENGTHS)
    order = torch.randperm(18, generator=torch.Generator().manual_seed(seed))
    shuffled = function(rows.rewards[order], rows.group_ids[order], LENGTHS[order])
    assert shuffled.tolist() == close(plain[order].tolist(), abs=1e-9)
    extra = torch.tensor([5.0, nan, 0.0], dtype=torch.float64)
    padded = function(
        torch.cat([rows.rewards, extra]),
        torch.cat([rows.group_ids, torch.full((3,), NO_GROUP)]),
        torch.cat([LENGTHS, torch.tensor([9, 9, 9])]),
    )
    assert padded[:18].tolist() == close(plain.tolist(), abs=1e-9)
    assert not padded[18:].any()


@SEEDS
def test_gdpo(seed):
    rows = random_rows(seed)
    components = torch.stack([rows.rewards, *rows.values.T[:2]], 1)
    components[seed, 2] = nan
    weights = [1.0, 0.5, -2.0]
    expected = reference.gdpo(components.tolist(), rows.group_ids.tolist(), weights)
    found = gdpo_advantages(components, rows.group_ids, torch.tensor(weights))
    assert found.tolist() == close(expected)
    single, metrics = gdpo_advantage(components.float(), rows.group_ids, rows.mask, weights=tuple(weights))
    spread = torch.tensor(expected).unsqueeze(1) * rows.mask
    assert torch.allclose(single, spread.float(), atol=2e-5)
    assert metrics.numbers()["group/unscorable_rows"] == components.isnan().any(1).sum()


@SEEDS
def test_gdpo_of_a_group_that_is_uniform_in_all_components_is_exactly_0(seed):
    """Beside mixed groups, whose advantages have a mean that rounding alone takes away from 0."""
    draw = torch.Generator().manual_seed(seed)
    components = torch.randn(12, 2, generator=draw, dtype=torch.float64)
    components[9:] = torch.tensor([0.1, 0.7], dtype=torch.float64)
    ids = torch.tensor([0, 1, 2] * 3 + [3] * 3)
    weights = torch.tensor([1.0, 0.3])
    found = gdpo_advantages(components, ids, weights)
    assert found[9:].tolist() == [0.0] * 3
    assert found.tolist() == close(reference.gdpo(components.tolist(), ids.tolist(), weights.tolist()))
    assert not gdpo_advantages(components.float(), ids, weights)[9:].any()


def test_gdpo_keeps_apart_what_a_sum_would_merge():
    """Right and well formed is worth more than right alone, and that more than either alone in another group."""
    components = torch.tensor([[1.0, 1.0], [1.0, 0.0], [0.0, 0.0], [0.0, 1.0]])
    ids = torch.zeros(4).long()
    found = gdpo_advantages(components, ids, torch.ones(2))
    assert found.tolist() == close([1.224745, 0, -1.224745, 0], abs=1e-5)
    summed = grpo_advantages(torch.tensor([100.0, 100.0, 0.0, 1.0]), ids)
    apart = gdpo_advantages(torch.tensor([[100.0, 0], [100.0, 0], [0, 0], [0, 1.0]]), ids, torch.ones(2))
    assert apart[3] - apart[2] > 50 * (summed[3] - summed[2])


def test_gdpo_rows_that_leave():
    components = torch.tensor([[1.0, 5.0], [0.0, nan], [0.0, 5.0], [3.0, 3.0], [9.0, 9.0]])
    found = gdpo_advantages(components, torch.tensor([1, 1, 1, 2, NO_GROUP]), torch.ones(2))
    assert found.tolist() == close([0.70711, 0, -0.70711, 0, 0], abs=1e-5)
    assert gdpo_advantages(torch.empty(0, 2), torch.empty(0).long(), torch.ones(2)).shape == (0,)
    assert not gdpo_advantages(torch.ones(4, 2), torch.zeros(4).long(), torch.ones(2)).any()


def test_gdpo_wants_a_weight_for_each_component():
    with pytest.raises(ValueError, match="`weights` has 1 numbers for 2 reward components"):
        gdpo_advantage(torch.zeros(2, 2), torch.zeros(2).long(), torch.ones(2, 1).bool(), weights=(1.0,))
