"""Log-probs and entropy from logits, without a float32 copy of the logits."""

from collections.abc import Iterator
from typing import Any

import torch
from jaxtyping import Float, Float32, Int64
from torch import Tensor
from torch.autograd.function import once_differentiable

#: Logits held in float32 at a time: what a core's cache holds, or enough to keep an accelerator busy.
CPU_CHUNK = 1 << 18
ACCELERATOR_CHUNK = 1 << 24
#: A log-weight whose exp is 0 in float32; -inf is raised to it, because 0 * -inf would be NaN in p log p.
_WEIGHTLESS = -150.0


def token_logprobs(
    logits: Float[Tensor, "N V"],
    targets: Int64[Tensor, " N"],
    temperatures: Float32[Tensor, " N"],
    *,
    with_entropy_grad: bool = False,
) -> tuple[Float32[Tensor, " N"], Float32[Tensor, " N"]]:
    """Log-prob of each target and entropy of each distribution, both in nats and at the row's temperature.

    With z = logits / temperature: logprob = z[target] - logsumexp(z), entropy = logsumexp(z) - sum(p z),
    p = softmax(z), computed in float32 whatever the logits' dtype. Only the logits are kept for the
    backward pass; without ``with_entropy_grad`` the entropy carries no gradient and costs none.

    Degenerate cases: a logit of -inf is a token that cannot be drawn, with nothing to add to the entropy;
    a row whose outputs receive a gradient of 0 passes none on, even if its logits are NaN.

    Raises:
        ValueError: if a temperature is not above 0: a greedy policy has no log-probs to form ratios of.
    """
    if not bool((temperatures > 0).all()):
        lowest = temperatures.min().item()
        raise ValueError(f"every temperature must be above 0 for log-probs and entropy, the lowest is {lowest}")
    return _TokenLogprobs.apply(logits, targets, temperatures, with_entropy_grad)


def _chunks(logits: Float[Tensor, "N V"]) -> Iterator[slice]:
    rows, vocabulary = logits.shape
    size = max(1, (CPU_CHUNK if logits.device.type == "cpu" else ACCELERATOR_CHUNK) // vocabulary)
    return (slice(start, start + size) for start in range(0, rows, size))


class _TokenLogprobs(torch.autograd.Function):
    """Chunk by chunk in float32, recomputing the distribution in the backward pass."""

    @staticmethod
    def forward(
        ctx: Any,
        logits: Float[Tensor, "N V"],
        targets: Int64[Tensor, " N"],
        temperatures: Float32[Tensor, " N"],
        with_entropy_grad: bool,
    ) -> tuple[Float32[Tensor, " N"], Float32[Tensor, " N"]]:
        logprobs = torch.empty(len(logits), dtype=torch.float32, device=logits.device)
        entropy, log_total = torch.empty_like(logprobs), torch.empty_like(logprobs)
        for rows in _chunks(logits):
            z = _shifted(logits[rows], temperatures[rows])
            chosen = z.gather(1, targets[rows].unsqueeze(1)).squeeze(1)
            weights = z.clamp_(min=_WEIGHTLESS).exp()
            total = weights.sum(1)
            log_total[rows] = total.log()
            logprobs[rows] = chosen - log_total[rows]
            entropy[rows] = log_total[rows] - weights.mul_(z).sum(1) / total
        ctx.save_for_backward(logits, targets, temperatures, log_total, entropy)
        ctx.with_entropy_grad = with_entropy_grad
        if not with_entropy_grad:
            ctx.mark_non_differentiable(entropy)
        return logprobs, entropy

    @staticmethod
    @once_differentiable
    def backward(  # pyright: ignore[reportIncompatibleMethodOverride] -- the decorator hides the parameters' names
        ctx: Any, grad_logprobs: Float32[Tensor, " N"], grad_entropy: Float32[Tensor, " N"]
    ) -> tuple[Float[Tensor, "N V"], None, None, None]:
        """With z as above: d logprob / dz = onehot - p; d entropy / dz = -p (log p + entropy)."""
        logits, targets, temperatures, log_total, entropy = ctx.saved_tensors
        grad_logits = torch.empty_like(logits)
        for rows in _chunks(logits):
            log_p = _shifted(logits[rows], temperatures[rows]).sub_(log_total[rows].unsqueeze(1))
            slope = -grad_logprobs[rows].unsqueeze(1)
            unused = slope == 0
            if ctx.with_entropy_grad:
                pull = grad_entropy[rows].unsqueeze(1)
                unused &= pull == 0
                slope = slope - (log_p.clamp_(min=_WEIGHTLESS) + entropy[rows].unsqueeze(1)).mul_(pull)
            grad = log_p.exp_().mul_(slope)
            grad.scatter_add_(1, targets[rows].unsqueeze(1), grad_logprobs[rows].unsqueeze(1))
            grad_logits[rows] = grad.div_(temperatures[rows].unsqueeze(1)).masked_fill_(unused, 0.0)
        return grad_logits, None, None, None


def _shifted(logits: Float[Tensor, "n V"], temperatures: Float32[Tensor, " n"]) -> Float32[Tensor, "n V"]:
    """Logits / temperature, less each row's largest, in a fresh float32 tensor."""
    z = (logits / temperatures.unsqueeze(1)).float()
    return z.sub_(z.amax(1, keepdim=True))
