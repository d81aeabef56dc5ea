import math

import pytest
import reference_ops as reference
import torch

from dagrl.ops import logprobs as module
from dagrl.ops.logprobs import token_logprobs

NAN, INF = math.nan, math.inf


@pytest.mark.parametrize(
    ("temperature", "logprobs", "entropy"),
    [
        (1.0, [-0.407606, -1.407606, -2.407606], 0.832396),
        (0.5, [-0.142932, -2.142932, -4.142932], 0.441057),
    ],
)
def test_temperature_applies_to_log_probs_and_entropy(temperature, logprobs, entropy):
    logits = torch.tensor([[2.0, 1.0, 0.0]] * 3)
    got, got_entropy = token_logprobs(logits, torch.arange(3), torch.full((3,), temperature))
    assert got.tolist() == pytest.approx(logprobs, abs=1e-5)
    assert got_entropy.tolist() == pytest.approx([entropy] * 3, abs=1e-5)


def random_case(seed, rows=9, vocabulary=13, dtype=torch.float32):
    generator = torch.Generator().manual_seed(seed)
    logits = (3 * torch.randn(rows, vocabulary, generator=generator)).to(dtype)
    targets = torch.randint(vocabulary, (rows,), generator=generator)
    temperatures = 0.4 + 1.5 * torch.rand(rows, generator=generator)
    upstream = torch.randn(2, rows, generator=generator)
    return logits.requires_grad_(), targets, temperatures, upstream


@pytest.mark.parametrize("seed", range(12))
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.float64])
@pytest.mark.parametrize("with_entropy_grad", [False, True])
@pytest.mark.parametrize("chunk", [1, 30, 1 << 20])
def test_matches_the_reference(seed, dtype, with_entropy_grad, chunk, monkeypatch):
    monkeypatch.setattr(module, "CPU_CHUNK", chunk)
    logits, targets, temperatures, upstream = random_case(seed, dtype=dtype)
    logprobs, entropy = token_logprobs(logits, targets, temperatures, with_entropy_grad=with_entropy_grad)
    assert logprobs.dtype == entropy.dtype == torch.float32
    weighted = (upstream[0] * logprobs).sum() + ((upstream[1] * entropy).sum() if with_entropy_grad else 0)
    weighted.backward()
    assert logits.grad.dtype == dtype
    for i, row in enumerate(logits.tolist()):
        at = targets[i].item(), temperatures[i].item()
        value, h = reference.token_logprobs(row, *at)
        assert logprobs[i].item() == pytest.approx(value, abs=1e-5)
        assert entropy[i].item() == pytest.approx(h, abs=1e-5)
        on_entropy = upstream[1, i].item() if with_entropy_grad else 0.0
        gradient = reference.token_logprobs_gradient(row, *at, upstream[0, i].item(), on_entropy)
        assert logits.grad[i].tolist() == pytest.approx(
            gradient, rel=1e-2 if dtype == torch.bfloat16 else 1e-4, abs=1e-5
        )


def test_the_entropys_gradient_alone():
    logits, targets, temperatures, upstream = random_case(3)
    (upstream[1] * token_logprobs(logits, targets, temperatures, with_entropy_grad=True)[1]).sum().backward()
    for i, row in enumerate(logits.tolist()):
        at = targets[i].item(), temperatures[i].item()
        gradient = reference.token_logprobs_gradient(row, *at, 0.0, upstream[1, i].item())
        assert logits.grad[i].tolist() == pytest.approx(gradient, abs=1e-5)


def test_the_references_gradient_is_its_finite_difference():
    row, target, temperature, h = [0.3, -1.0, 2.0, 0.7], 2, 0.7, 1e-6
    gradient = reference.token_logprobs_gradient(row, target, temperature, 1.3, -0.4)
    for j in range(4):
        up, down = ([*row[:j], row[j] + step, *row[j + 1 :]] for step in (h, -h))
        values = [reference.token_logprobs(at, target, temperature) for at in (up, down)]
        slope = [(values[0][k] - values[1][k]) / (2 * h) for k in (0, 1)]
        assert gradient[j] == pytest.approx(1.3 * slope[0] - 0.4 * slope[1], abs=1e-7)


def test_without_the_flag_the_entropy_has_no_gradient():
    logits, targets, temperatures, _ = random_case(0)
    logprobs, entropy = token_logprobs(logits, targets, temperatures)
    assert logprobs.requires_grad
    assert not entropy.requires_grad
    assert token_logprobs(logits, targets, temperatures, with_entropy_grad=True)[1].requires_grad


@pytest.mark.parametrize("with_entropy_grad", [False, True])
def test_a_token_that_cannot_be_drawn_adds_nothing(with_entropy_grad):
    logits = torch.tensor([[2.0, 1.0, -INF, 0.0]], requires_grad=True)
    logprobs, entropy = token_logprobs(logits, torch.tensor([0]), torch.ones(1), with_entropy_grad=with_entropy_grad)
    (logprobs + 2.5 * entropy).sum().backward()
    assert logprobs.item() == pytest.approx(-0.407606, abs=1e-5)
    assert entropy.item() == pytest.approx(0.832396, abs=1e-5)
    expected = reference.token_logprobs_gradient([2.0, 1.0, 0.0], 0, 1.0, 1.0, 2.5 * with_entropy_grad)
    expected.insert(2, 0.0)
    assert logits.grad.tolist() == [pytest.approx(expected, abs=1e-5)]
    assert token_logprobs(logits, torch.tensor([2]), torch.ones(1))[0].item() == -INF


@pytest.mark.parametrize("with_entropy_grad", [False, True])
def test_poisoned_logits_of_a_masked_token_get_no_gradient(with_entropy_grad):
    logits = torch.tensor([[2.0, 1.0, 0.0], [NAN, INF, 0.0]], requires_grad=True)
    logprobs, entropy = token_logprobs(logits, torch.tensor([0, 0]), torch.ones(2), with_entropy_grad=with_entropy_grad)
    (logprobs + entropy).masked_fill(torch.tensor([False, True]), 0.0).sum().backward()
    expected = reference.token_logprobs_gradient([2.0, 1.0, 0.0], 0, 1.0, 1.0, float(with_entropy_grad))
    assert logits.grad.tolist() == [pytest.approx(expected, abs=1e-5), [0, 0, 0]]


def test_nan_logits_of_a_trained_token_are_never_hidden():
    logits = torch.tensor([[NAN, 1.0, 0.0]], requires_grad=True)
    logprobs, entropy = token_logprobs(logits, torch.tensor([1]), torch.ones(1))
    logprobs.sum().backward()
    assert logprobs.isnan().all()
    assert entropy.isnan().all()
    assert logits.grad.isnan().any()


def test_large_logits_do_not_overflow():
    logits = torch.tensor([[3e4, 0.0, -3e4]])
    logprobs, entropy = token_logprobs(logits, torch.tensor([0]), torch.tensor([0.01]))
    assert (logprobs.item(), entropy.item()) == (0.0, 0.0)


def test_a_rows_log_prob_does_not_depend_on_its_batch_mates():
    logits, targets, temperatures, _ = random_case(5, rows=40)
    whole = token_logprobs(logits, targets, temperatures)
    for i in range(40):
        alone = token_logprobs(logits[i : i + 1], targets[i : i + 1], temperatures[i : i + 1])
        assert alone[0].item() == pytest.approx(whole[0][i].item(), abs=1e-6)


@pytest.mark.parametrize("temperature", [0.0, -1.0, NAN])
def test_a_temperature_that_is_not_positive_is_refused(temperature):
    with pytest.raises(ValueError, match="temperature"):
        token_logprobs(torch.zeros(2, 3), torch.tensor([0, 1]), torch.tensor([1.0, temperature]))


def test_no_tokens():
    logits = torch.empty(0, 5, requires_grad=True)
    logprobs, entropy = token_logprobs(logits, torch.empty(0, dtype=torch.int64), torch.empty(0))
    logprobs.sum().backward()
    assert logprobs.shape == entropy.shape == (0,)
    assert logits.grad.shape == (0, 5)


def test_only_the_logits_themselves_are_kept_for_the_backward_pass():
    logits, targets, temperatures, _ = random_case(0, rows=50, vocabulary=200, dtype=torch.bfloat16)
    logprobs, _ = token_logprobs(logits, targets, temperatures)
    saved = [t for t in logprobs.grad_fn.saved_tensors if t.numel() > 50]
    assert [t.data_ptr() for t in saved] == [logits.data_ptr()]
