"""Clip-Cov and KL-Cov against the scalar reference, and their degenerate cases."""

import pytest
import reference_hooks as reference
import torch
from torch import Tensor

from dagrl.ops.covariance import (
    clip_cov_loss,
    clip_cov_selection,
    kl_cov_loss,
    kl_cov_selection,
    num_selected,
    token_covariance,
)
from dagrl.ops.masks import mask_from_lengths
from dagrl.ops.ppo_clip import ppo_clip_loss

POISONS = [0.0, float("nan"), float("inf"), float("-inf")]


def rows(seed: int, dtype: torch.dtype = torch.float64, poison: float = 0.0) -> dict[str, Tensor]:
    """Nine rows with padding and holes, one of them without a trained token."""
    draw = torch.Generator().manual_seed(seed)
    lengths = torch.tensor([5, 1, 3, 7, 2, 4, 6, 7, 3])
    mask = mask_from_lengths(lengths, 7) & (torch.rand(9, 7, generator=draw) > 0.25)
    mask[2] = False
    old = -2 * torch.rand(9, 7, generator=draw, dtype=torch.float64) - 0.1
    made = {
        "logprobs": old + 0.4 * torch.randn(9, 7, generator=draw, dtype=torch.float64),
        "old_logprobs": old,
        "advantages": torch.randn(9, 1, generator=draw, dtype=torch.float64).expand(9, 7).clone(),
    }
    made = {name: values.to(dtype).masked_fill(~mask, poison) for name, values in made.items()}
    return {**made, "mask": mask, "uniform": torch.rand(9, 7, generator=draw)}


def places(flags: Tensor) -> set[tuple[int, int]]:
    return {(row, place) for row, place in flags.nonzero().tolist()}


@pytest.mark.parametrize(("dtype", "tolerance"), [(torch.float64, 1e-6), (torch.float32, 1e-5)])
@pytest.mark.parametrize("poison", POISONS)
@pytest.mark.parametrize("seed", range(4))
def test_covariance_is_the_references(seed: int, poison: float, dtype: torch.dtype, tolerance: float) -> None:
    clean, given = rows(seed), rows(seed, dtype, poison)
    found = token_covariance(given["logprobs"], given["advantages"], given["mask"])
    expected = reference.covariances(clean["logprobs"].tolist(), clean["advantages"].tolist(), clean["mask"].tolist())
    assert torch.equal(found == 0, ~given["mask"])
    for (row, place), value in expected.items():
        assert float(found[row, place]) == pytest.approx(value, rel=tolerance, abs=tolerance)


@pytest.mark.parametrize("share", [2e-4, 0.1, 0.3, 1.0])
@pytest.mark.parametrize("bounds", [(1.0, 5.0), (-0.1, 0.2), (-9.0, 9.0), (8.0, 9.0)])
@pytest.mark.parametrize("seed", range(3))
def test_clip_cov_selects_what_the_reference_selects(seed: int, bounds: tuple[float, float], share: float) -> None:
    given, (low, high) = rows(seed, poison=float("nan")), bounds
    policy = (given["logprobs"], given["old_logprobs"], given["advantages"], given["mask"])
    _, clipped = ppo_clip_loss(*policy, eps_low=0.2, eps_high=0.28)
    covariance = token_covariance(given["logprobs"], given["advantages"], given["mask"])
    found = clip_cov_selection(
        covariance, ~clipped, given["mask"], given["uniform"], share=share, low=low, high=high
    )  # fmt: skip
    clean = rows(seed)
    names = ("logprobs", "old_logprobs", "advantages", "mask", "uniform")
    lists = [clean[name].tolist() for name in names]
    expected = reference.clip_cov_selected(*lists, eps=0.2, eps_high=0.28, share=share, low=low, high=high)
    assert clipped.any()
    assert places(found) == expected


@pytest.mark.parametrize("share", [2e-3, 0.1, 0.35, 1.0])
@pytest.mark.parametrize("seed", range(3))
def test_kl_cov_selects_what_the_reference_selects(seed: int, share: float) -> None:
    given, clean = rows(seed, poison=float("inf")), rows(seed)
    covariance = token_covariance(given["logprobs"], given["advantages"], given["mask"])
    found = kl_cov_selection(covariance, given["mask"], given["uniform"], share=share)
    lists = [clean[name].tolist() for name in ("logprobs", "advantages", "mask", "uniform")]
    assert places(found) == reference.kl_cov_selected(*lists, share=share)
    assert int(found.sum()) == num_selected(given["mask"], share)


def test_equal_covariances_are_told_apart_by_the_draw_alone() -> None:
    """All advantages equal: every term is 0, and neither rows' order nor padding says which tokens are taken."""
    given = rows(0)
    covariance = token_covariance(given["logprobs"], torch.full((9, 7), 2.0), given["mask"])
    assert not covariance.any()
    found = kl_cov_selection(covariance, given["mask"], given["uniform"], share=0.2)
    smallest = sorted(given["uniform"][given["mask"]].tolist())[: num_selected(given["mask"], 0.2)]
    assert sorted(given["uniform"][found].tolist()) == smallest
    order = torch.randperm(9, generator=torch.Generator().manual_seed(5))
    shuffled = kl_cov_selection(covariance[order], given["mask"][order], given["uniform"][order], share=0.2)
    assert torch.equal(shuffled, found[order])


def test_at_least_one_token_is_taken_and_none_where_nothing_is_trained() -> None:
    mask = torch.tensor([[True, True, False]])
    covariance, uniform = torch.tensor([[2.0, 3.0, 4.0]]), torch.tensor([[0.5, 0.4, 0.1]])
    every = torch.ones_like(mask)
    one = clip_cov_selection(covariance, every, mask, uniform, share=1e-6, low=1.0, high=5.0)
    assert one.tolist() == [[False, True, False]]
    assert kl_cov_selection(covariance, mask, uniform, share=1e-6).tolist() == [[False, True, False]]
    nothing = torch.zeros_like(mask)
    assert not kl_cov_selection(covariance, nothing, uniform, share=0.5).any()
    assert not clip_cov_selection(covariance, every, nothing, uniform, share=0.5, low=1.0, high=5.0).any()
    assert token_covariance(covariance, covariance, nothing).tolist() == [[0.0, 0.0, 0.0]]


def test_the_bounds_are_open() -> None:
    covariance, mask = torch.tensor([[1.0, 5.0, 1.5]]), torch.ones(1, 3, dtype=torch.bool)
    found = clip_cov_selection(covariance, mask, mask, torch.zeros(1, 3), share=1.0, low=1.0, high=5.0)
    assert found.tolist() == [[False, False, True]]


@pytest.mark.parametrize(("dtype", "tolerance"), [(torch.float64, 1e-6), (torch.float32, 1e-5)])
@pytest.mark.parametrize("poison", POISONS)
def test_losses_and_gradients_are_the_references(poison: float, dtype: torch.dtype, tolerance: float) -> None:
    given, clean = rows(1, dtype, poison), rows(1)
    selected = (given["uniform"] < 0.4) & given["mask"]
    mask = given["mask"]
    for name in ("clip", "kl"):
        logprobs = given["logprobs"].clone().requires_grad_()
        policy = (logprobs, given["old_logprobs"], given["advantages"], selected, mask)
        if name == "clip":
            losses, _ = clip_cov_loss(*policy, eps_low=0.2, eps_high=0.3)
        else:
            losses = kl_cov_loss(*policy, coef=0.7)
        losses.sum().backward()
        gradient, losses = logprobs.grad, losses.detach()
        assert gradient is not None
        assert not losses[~mask].any()
        assert not gradient[~mask].any()
        for row, place in mask.nonzero().tolist():
            logprob, old, advantage = (
                float(clean[key][row, place]) for key in ("logprobs", "old_logprobs", "advantages")
            )
            chosen = bool(selected[row, place])
            if name == "clip":
                expected = reference.clip_cov(logprob, old, advantage, selected=chosen, eps=0.2, eps_high=0.3)
            else:
                expected = reference.kl_cov(logprob, old, advantage, selected=chosen, coef=0.7)
            assert float(losses[row, place]) == pytest.approx(expected[0], rel=tolerance, abs=tolerance)
            assert float(gradient[row, place]) == pytest.approx(expected[1], rel=tolerance, abs=tolerance)


def test_where_the_policies_agree_the_penalty_has_no_gradient() -> None:
    logprobs = torch.tensor([[-1.0, -2.0]], requires_grad=True)
    every = torch.ones(1, 2, dtype=torch.bool)
    kl_cov_loss(logprobs, logprobs.detach(), torch.tensor([[1.0, -3.0]]), every, every, coef=5.0).sum().backward()
    assert logprobs.grad is not None
    assert logprobs.grad.tolist() == [[-1.0, 3.0]]
