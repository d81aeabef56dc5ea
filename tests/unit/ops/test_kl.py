import math

import pytest
import reference_losses
import reference_ops as reference
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from dagrl.ops.kl import KL_KINDS, kl_estimate

steady = settings(deadline=None, derandomize=True)

NAN, INF = math.nan, math.inf
POLICY, REFERENCE = [1.0, 0.0, -1.0], reference.log_softmax([0.0, 0.5, -0.5])


@pytest.mark.parametrize(
    ("logprob", "ref", "kind", "value", "gradient"),
    [
        (-1.0, -2.0, "k1", 1.0, 1.0),
        (-1.0, -2.0, "k2", 0.5, 1.0),
        (-1.0, -2.0, "k3", 0.367879, 0.632121),
        (-2.0, -1.0, "k1", -1.0, 1.0),
        (-2.0, -1.0, "k2", 0.5, -1.0),
        (-2.0, -1.0, "k3", 0.718282, -1.718282),
        (-1.0, -2.0, "abs", 1.0, 1.0),
        (-2.0, -1.0, "abs", 1.0, -1.0),
        (-1.0, -2.0, "k1+", 1.0, 1.0),
        (-2.0, -1.0, "k1+", -1.0, -1.0),
        (-1.0, -2.0, "k3+", 0.367879, 1.0),
        (-2.0, -1.0, "k3+", 0.718282, -1.0),
    ],
)
def test_values_and_gradients(logprob, ref, kind, value, gradient):
    logprobs = torch.tensor([[logprob]], requires_grad=True)
    estimate = kl_estimate(logprobs, torch.tensor([[ref]]), torch.tensor([[True]]), kind)
    estimate.sum().backward()
    assert estimate.item() == pytest.approx(value, abs=1e-5)
    assert logprobs.grad.item() == pytest.approx(gradient, abs=1e-5)
    assert estimate.dtype == torch.float32


@pytest.mark.parametrize("kind", KL_KINDS)
@steady
@given(pair=st.tuples(st.floats(-8, 0), st.floats(-8, 0)))
def test_matches_the_reference(kind, pair):
    logprobs = torch.tensor([[pair[0]]], dtype=torch.float64, requires_grad=True)
    estimate = kl_estimate(logprobs, torch.tensor([[pair[1]]], dtype=torch.float64), torch.tensor([[True]]), kind)
    estimate.sum().backward()
    value, gradient = reference_losses.kl(*pair, kind)
    assert estimate.item() == pytest.approx(value, rel=1e-9, abs=1e-9)
    assert logprobs.grad.item() == pytest.approx(gradient, rel=1e-9, abs=1e-9)


@pytest.mark.parametrize("kind", KL_KINDS)
@pytest.mark.parametrize("seed", range(6))
@pytest.mark.parametrize(("dtype", "near"), [(torch.float64, 1e-9), (torch.float32, 1e-5)])
def test_matches_the_reference_on_batches_with_gaps(kind, seed, dtype, near):
    draw = torch.Generator().manual_seed(seed)
    mask = torch.rand(6, 7, generator=draw) < 0.6
    mask[0] = False
    ref = -torch.randn(6, 7, generator=draw, dtype=torch.float64).abs()
    new = (ref + 0.5 * torch.randn(6, 7, generator=draw, dtype=torch.float64)).to(dtype)
    poison = torch.tensor([NAN, INF, -INF, -200.0], dtype=dtype)[torch.arange(7) % 4]
    logprobs = torch.where(mask, new, poison).requires_grad_()
    ref = torch.where(mask, ref.to(dtype), poison.roll(1))
    weights = torch.randn(6, 7, generator=draw, dtype=dtype)
    estimate = kl_estimate(logprobs, ref, mask, kind)
    (estimate * weights).sum().backward()
    assert estimate.dtype == dtype
    for i, row in enumerate(mask.tolist()):
        for j, keep in enumerate(row):
            value, slope = reference_losses.kl(new[i, j].item(), ref[i, j].item(), kind) if keep else (0.0, 0.0)
            assert estimate[i, j].item() == pytest.approx(value, abs=near)
            assert logprobs.grad[i, j].item() == pytest.approx(slope * weights[i, j].item(), abs=near)


def expectation(kind):
    """Exact E over the policy's tokens of the estimate, and of its gradient in the policy's logits."""
    logits = torch.tensor(POLICY, dtype=torch.float64, requires_grad=True)
    logprobs = logits.log_softmax(0)[None]
    estimates = kl_estimate(logprobs, torch.tensor([REFERENCE], dtype=torch.float64), torch.ones(1, 3).bool(), kind)
    weighted = (logprobs.detach().exp() * estimates).sum()  # the sampling distribution carries no gradient
    weighted.backward()
    return weighted.item(), logits.grad.tolist()


def test_the_exact_kl_by_hand():
    p = reference.softmax(POLICY)
    assert math.fsum(p_j * (math.log(p_j) - ref) for p_j, ref in zip(p, REFERENCE, strict=True)) == pytest.approx(
        0.270525, abs=1e-5
    )


@pytest.mark.parametrize("kind", ["k1", "k3", "k1+", "k3+"])
def test_k1_and_k3_are_unbiased(kind):
    assert expectation(kind)[0] == pytest.approx(0.270525, abs=1e-5)


@pytest.mark.parametrize("kind", ["k2", "k1+", "k3+"])
def test_k2_and_the_straight_through_kinds_have_the_gradient_of_the_kl(kind):
    assert expectation(kind)[1] == pytest.approx([0.334043, -0.244205, -0.089838], abs=1e-5)


def test_k1_has_a_gradient_of_zero_in_expectation():
    assert expectation("k1")[1] == pytest.approx([0.0, 0.0, 0.0], abs=1e-9)


def test_k3_has_the_gradient_of_the_forward_kl():
    gradient = expectation("k3")[1]
    assert gradient == pytest.approx([0.358045, -0.261752, -0.096293], abs=1e-5)
    p, q = reference.softmax(POLICY), reference.softmax(REFERENCE)
    assert gradient == pytest.approx([p_j - q_j for p_j, q_j in zip(p, q, strict=True)], abs=1e-9)


@pytest.mark.parametrize("kind", KL_KINDS)
@pytest.mark.parametrize("poison", [NAN, INF, -INF, -200.0])
@pytest.mark.parametrize("poisoned", ["logprobs", "ref"])
def test_masked_poison_changes_nothing(kind, poison, poisoned):
    clean, dirty = [-1.0, -1.0], [-1.0, poison]
    logprobs = torch.tensor([dirty if poisoned == "logprobs" else clean], requires_grad=True)
    ref = torch.tensor([dirty if poisoned == "ref" else clean]) - torch.tensor([[1.0, 0.0]])
    estimate = kl_estimate(logprobs, ref, torch.tensor([[True, False]]), kind)
    estimate.sum().backward()
    value, gradient = reference_losses.kl(-1.0, -2.0, kind)
    assert estimate.tolist() == [[pytest.approx(value, abs=1e-5), 0.0]]
    assert logprobs.grad.tolist() == [[pytest.approx(gradient, abs=1e-5), 0.0]]


@pytest.mark.parametrize("kind", KL_KINDS)
def test_nan_at_a_trained_token_is_never_hidden(kind):
    assert kl_estimate(torch.tensor([[-1.0]]), torch.tensor([[NAN]]), torch.tensor([[True]]), kind).isnan().all()


def test_equal_log_probs_give_exactly_zero():
    logprobs = torch.tensor([[-1.3, -0.2]])
    for kind in KL_KINDS:
        assert kl_estimate(logprobs, logprobs, torch.ones(1, 2).bool(), kind).tolist() == [[0.0, 0.0]]


def test_k3_of_a_tiny_difference_is_not_lost_in_float32():
    estimate = kl_estimate(torch.tensor([[0.0]]), torch.tensor([[-1e-3]]), torch.tensor([[True]]), "k3")
    assert estimate.item() == pytest.approx(reference_losses.kl(0.0, -1e-3, "k3")[0], rel=1e-3)


def test_the_reference_gets_no_gradient():
    same = torch.tensor([[-1.0]], requires_grad=True)
    kl_estimate(same, same, torch.tensor([[True]]), "k1").sum().backward()
    assert same.grad.item() == 1.0


def test_an_unknown_kind_is_refused():
    with pytest.raises(ValueError, match=r"k4.*k1, k2, k3"):
        kl_estimate(torch.zeros(1, 1), torch.zeros(1, 1), torch.ones(1, 1).bool(), "k4")
