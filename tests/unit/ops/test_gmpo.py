"""GMPO against the derivative of the paper's objective of a row, in which nothing is held constant."""

import pytest
import reference_losses as reference
import torch

from dagrl.ops.aggregate import Denominators, aggregate
from dagrl.ops.sequence_ratio import gmpo_loss

ROWS, WIDTH = 6, 7


def off_policy_rows(seed):
    """Rows of one advantage each, tokens beyond either bound; the first has none that is trained, the last A = 0."""
    draw = torch.Generator().manual_seed(seed)
    mask = torch.rand(ROWS, WIDTH, generator=draw) < 0.7
    mask[0] = False
    mask[1:, 3] = True
    old, moved = torch.randn(2, ROWS, WIDTH, generator=draw, dtype=torch.float64)
    advantages = torch.randn(ROWS, generator=draw, dtype=torch.float64)
    advantages[1], advantages[2], advantages[-1] = 1.5, -1.5, 0.0
    return old + 0.6 * moved, old, advantages, mask


def objective(new, old, advantages, mask, options):
    """The mean over rows with a trained token of the paper's objective."""
    rows = [row for row in range(ROWS) if mask[row].any()]
    values = [
        reference.gmpo_objective(new[row][mask[row]].tolist(), old[row][mask[row]].tolist(), advantages[row], **options)
        for row in rows
    ]
    return sum(values) / len(rows)


@pytest.mark.parametrize("seed", range(8))
@pytest.mark.parametrize("options", [{}, {"eps": 0.2, "eps_high": 0.6}])
def test_value_and_derivative_are_those_of_the_papers_objective(seed, options):
    new, old, advantages, mask = off_policy_rows(seed)
    renamed = {"eps_low": options["eps"], "eps_high": options["eps_high"]} if options else {}
    given = new.clone().requires_grad_()
    losses, clipped = gmpo_loss(given, old, advantages[:, None].expand(ROWS, WIDTH), mask, **renamed)
    total = aggregate(losses, mask, "seq-mean-token-mean", Denominators.of(mask))
    total.backward()
    assert total.item() == pytest.approx(objective(new, old, advantages.tolist(), mask, options), abs=1e-12)
    step = 1e-6
    for row, place in mask.nonzero().tolist():
        ends = []
        for sign in (1.0, -1.0):
            there = new.clone()
            there[row, place] += sign * step
            ends.append(objective(there, old, advantages.tolist(), mask, options))
        assert given.grad[row, place].item() == pytest.approx((ends[0] - ends[1]) / (2 * step), abs=1e-8)
    assert not given.grad[~mask].any()
    assert 0 < clipped[mask].double().mean() < 1
