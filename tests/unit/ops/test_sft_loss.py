"""The loss of supervised fine-tuning against its reference, on rows with gaps, an empty one and poison."""

from math import fsum, inf, nan

import pytest
import reference_losses as reference
import torch

from dagrl.nodes import sft_loss


@pytest.mark.parametrize("seed", range(10))
@pytest.mark.parametrize(("dtype", "near"), [(torch.float64, 1e-9), (torch.float32, 1e-5)])
@pytest.mark.parametrize("poison", [nan, inf, -inf, -200.0])
def test_matches_the_reference(seed, dtype, near, poison):
    draw = torch.Generator().manual_seed(seed)
    mask = torch.rand(6, 7, generator=draw) < 0.6
    mask[0] = False
    plain = -torch.randn(6, 7, generator=draw, dtype=torch.float64).abs().to(dtype)
    weights = torch.randn(6, 7, generator=draw, dtype=dtype)
    new = plain.masked_fill(~mask, poison).requires_grad_()
    losses, metrics = sft_loss(new, mask)
    (losses * weights).sum().backward()
    assert losses.dtype == dtype
    every = []
    for row, keep in enumerate(mask):
        logprobs, at = plain[row][keep].tolist(), weights[row][keep].tolist()
        expected = reference.sft(logprobs)
        every += expected
        assert losses[row][keep].tolist() == pytest.approx(expected, abs=near)
        slopes = reference.derivative(reference.sft, logprobs, at)
        assert new.grad[row][keep].tolist() == pytest.approx(slopes, abs=max(near, 1e-6))
    assert not losses[~mask].any()
    assert not new.grad[~mask].any()
    assert metrics.numbers()["actor/nll"] == pytest.approx(fsum(every) / len(every), abs=near)
