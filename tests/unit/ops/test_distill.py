"""Divergences from a teacher against the scalar reference and the full KL; gradients by finite differences."""

import math

import pytest
import reference_hooks as reference
import torch
from torch import Tensor

from dagrl.nodes import reverse_kl_distill
from dagrl.ops.distill import TAIL_FLOOR, sampled_reverse_kl, topk_kl

KINDS = ["forward", "reverse"]
TAILS = ["bucket", "renormalize", "drop"]
VOCABULARY = 9


def distributions(dtype: torch.dtype = torch.float64, k: int = 4) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    """Logits of a student, a teacher's log-probs over the vocabulary, and its k likeliest tokens."""
    draw = torch.Generator().manual_seed(k)
    logits = 2 * torch.randn(6, VOCABULARY, generator=draw, dtype=torch.float64)
    teacher = (logits + torch.randn(logits.shape, generator=draw, dtype=torch.float64)).log_softmax(1)
    highest, ids = teacher.topk(k)
    return logits.to(dtype), teacher, ids, highest.to(dtype)


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("tail", TAILS)
@pytest.mark.parametrize("k", [1, 4, 8, 9])
@pytest.mark.parametrize(("dtype", "tolerance"), [(torch.float64, 1e-6), (torch.float32, 1e-5)])
def test_the_divergence_is_the_references(kind: str, tail: str, k: int, dtype: torch.dtype, tolerance: float) -> None:
    logits, _, ids, highest = distributions(dtype, k)
    found = topk_kl(logits, ids, highest, kind=kind, tail=tail)
    clean = distributions(k=k)
    for row, value in enumerate(found.tolist()):
        lists = (clean[0][row].tolist(), ids[row].tolist(), clean[3][row].tolist())
        assert value == pytest.approx(reference.topk_kl(*lists, kind, tail), rel=tolerance, abs=tolerance)


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("tail", TAILS)
@pytest.mark.parametrize("k", [2, 4, 9])
def test_the_gradient_is_that_of_finite_differences(kind: str, tail: str, k: int) -> None:
    logits, _, ids, highest = distributions(k=k)
    logits.requires_grad_()
    topk_kl(logits, ids, highest, kind=kind, tail=tail).sum().backward()
    assert logits.grad is not None
    step = 1e-5
    for row in range(2):
        for token in range(VOCABULARY):
            ends = []
            for sign in (1, -1):
                moved = logits[row].tolist()
                moved[token] += sign * step
                ends.append(reference.topk_kl(moved, ids[row].tolist(), highest[row].tolist(), kind, tail))
            expected = (ends[0] - ends[1]) / (2 * step)
            assert float(logits.grad[row, token]) == pytest.approx(expected, rel=1e-5, abs=1e-7)


@pytest.mark.parametrize("kind", KINDS)
def test_the_bucket_is_between_nothing_and_the_full_kl(kind: str) -> None:
    logits, teacher, *_ = distributions()
    student = logits.log_softmax(1)
    pairs = (teacher, student) if kind == "forward" else (student, teacher)
    full = [reference.full_kl(a.tolist(), b.tolist()) for a, b in zip(*pairs, strict=True)]
    before = [0.0] * len(full)
    for k in range(1, VOCABULARY + 1):
        highest, ids = teacher.topk(k)
        found = topk_kl(logits, ids, highest, kind=kind, tail="bucket").tolist()
        assert all(low - 1e-9 <= value <= high + 1e-9 for low, value, high in zip(before, found, full, strict=True))
        before = found
    assert before == pytest.approx(full)
    for tail in ("renormalize", "drop"):
        assert topk_kl(logits, ids, highest, kind=kind, tail=tail).tolist() == pytest.approx(full)


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("tail", TAILS)
def test_a_student_that_is_the_teacher_has_no_divergence_and_no_gradient(kind: str, tail: str) -> None:
    logits = distributions()[0].requires_grad_()
    highest, ids = logits.detach().log_softmax(1).topk(4)
    found = topk_kl(logits, ids, highest, kind=kind, tail=tail)
    found.sum().backward()
    assert found.abs().max() < 1e-9
    assert logits.grad is not None
    if tail != "drop":  # which has the gradient of the mass that the student keeps in the top-k
        assert logits.grad.abs().max() < 1e-9


def test_what_is_left_out_of_a_renormalised_top_k_is_not_trained() -> None:
    """Less of everything else changes nothing; as a bucket it counts."""
    logits, _, ids, highest = distributions()
    lower = (logits - 3).scatter(1, ids, logits.gather(1, ids))
    for kind in KINDS:
        kept = [topk_kl(one, ids, highest, kind=kind, tail="renormalize") for one in (logits, lower)]
        assert torch.allclose(*kept)
        moved = [topk_kl(one, ids, highest, kind=kind, tail="bucket") for one in (logits, lower)]
        assert not torch.allclose(*moved)


def test_a_teacher_without_a_tail_has_the_floors_log_prob_there() -> None:
    logits, ids = torch.zeros(1, 4), torch.tensor([[0, 1]])
    teacher = torch.tensor([[0.5, 0.5]]).log()
    assert topk_kl(logits, ids, teacher, kind="forward", tail="bucket").item() == pytest.approx(math.log(2))
    expected = 0.5 * math.log(0.5) + 0.5 * (math.log(0.5) - math.log(TAIL_FLOOR))
    assert topk_kl(logits, ids, teacher, kind="reverse", tail="bucket").item() == pytest.approx(expected, rel=1e-5)


def test_a_token_that_the_student_cannot_draw() -> None:
    logits = torch.tensor([[0.0, -torch.inf, 1.0, 0.5]], requires_grad=True)
    ids, teacher = torch.tensor([[1, 2]]), torch.tensor([[0.3, 0.6]]).log()
    assert topk_kl(logits, ids, teacher, kind="forward", tail="drop").item() == torch.inf
    found = topk_kl(logits, ids, teacher, kind="reverse", tail="drop")
    share = math.e / (1 + math.e + math.exp(0.5))
    assert found.item() == pytest.approx(share * (math.log(share) - math.log(0.6)), rel=1e-5)
    found.backward()
    assert logits.grad is not None
    assert logits.grad.isfinite().all()


def test_no_token_and_what_is_refused() -> None:
    logits, _, ids, highest = distributions()
    for tail in TAILS:
        assert topk_kl(logits[:0], ids[:0], highest[:0], kind="forward", tail=tail).shape == (0,)
    with pytest.raises(ValueError, match="the teacher has a token 9, the student's vocabulary 9 tokens"):
        topk_kl(logits, ids.fill_(VOCABULARY), highest, kind="forward", tail="bucket")
    with pytest.raises(ValueError, match="kind='both'"):
        topk_kl(logits, ids, highest, kind="both", tail="bucket")
    with pytest.raises(ValueError, match="tail='none'"):
        topk_kl(logits, ids, highest, kind="reverse", tail="none")


@pytest.mark.parametrize("poison", [0.0, float("nan"), float("inf"), float("-inf")])
@pytest.mark.parametrize(("dtype", "tolerance"), [(torch.float64, 1e-6), (torch.float32, 1e-5)])
def test_the_sampled_reverse_kl_is_the_references(poison: float, dtype: torch.dtype, tolerance: float) -> None:
    draw = torch.Generator().manual_seed(2)
    mask = torch.rand(5, 6, generator=draw) > 0.3
    mask[3] = False
    values = [-2 * torch.rand(5, 6, generator=draw, dtype=torch.float64) for _ in range(3)]
    given = [value.to(dtype).masked_fill(~mask, poison) for value in values]
    given[0].requires_grad_()
    found = sampled_reverse_kl(*given, mask)
    found.sum().backward()
    gradient = given[0].grad
    assert gradient is not None
    assert not found[~mask].any()
    assert not gradient[~mask].any()
    for row, place in mask.nonzero().tolist():
        value, slope = reference.sampled_reverse_kl(*(float(one[row, place]) for one in values))
        assert float(found[row, place]) == pytest.approx(value, rel=tolerance, abs=tolerance)
        assert float(gradient[row, place]) == pytest.approx(slope, rel=tolerance, abs=tolerance)


def test_in_expectation_over_the_old_policy_value_and_gradient_are_those_of_the_kl() -> None:
    """The sum over the vocabulary, weighed by the old policy, against the full KL of the new one."""
    logits, teacher, *_ = distributions()
    old = (logits + 0.5 * torch.randn(logits.shape, generator=torch.Generator().manual_seed(8))).log_softmax(1)
    estimated, exact = logits.clone().requires_grad_(), logits.clone().requires_grad_()
    student = estimated.log_softmax(1)
    terms = sampled_reverse_kl(student, old, teacher, torch.ones_like(student, dtype=torch.bool))
    value = (old.exp() * terms).sum()
    value.backward()
    log_p = exact.log_softmax(1)
    expected = (log_p.exp() * (log_p - teacher)).sum()
    expected.backward()
    assert float(value) == pytest.approx(float(expected))
    assert estimated.grad is not None
    assert exact.grad is not None
    assert torch.allclose(estimated.grad, exact.grad)


def test_rollout_weights_make_the_estimate_one_over_the_tokens_that_were_drawn() -> None:
    """The sum over the vocabulary, weighed by the policy of the rollout, against the full KL of the new one."""
    logits, teacher, *_ = distributions()
    draw = torch.Generator().manual_seed(9)
    old, drawn = ((logits + 0.5 * torch.randn(logits.shape, generator=draw)).log_softmax(1) for _ in range(2))
    estimated, exact = logits.clone().requires_grad_(), logits.clone().requires_grad_()
    mask = torch.ones_like(logits, dtype=torch.bool)
    weights = (old - drawn).exp().requires_grad_()
    terms, metrics = reverse_kl_distill(estimated.log_softmax(1), old, teacher, mask, weights)
    (drawn.exp() * terms).sum().backward()
    log_p = exact.log_softmax(1)
    expected = (log_p.exp() * (log_p - teacher)).sum()
    expected.backward()
    assert float((drawn.exp() * terms.detach()).sum()) == pytest.approx(float(expected.detach()))
    assert estimated.grad is not None
    assert exact.grad is not None
    assert torch.allclose(estimated.grad, exact.grad)
    assert weights.grad is None
    assert metrics.numbers()["distill/reverse_kl"] == pytest.approx(float(terms.detach().mean()))
