"""Per-token estimators of the KL divergence from a reference policy."""

from typing import Literal, get_args

import torch
from jaxtyping import Bool, Float32
from torch import Tensor

from dagrl.ops.masks import where_masked

#: Estimators by their value alone, which is all that a reward needs.
KlValue = Literal["k1", "k2", "k3", "abs"]
KlKind = Literal["k1", "k2", "k3", "abs", "k1+", "k3+"]
KL_KINDS: tuple[KlKind, ...] = get_args(KlKind)


def kl_estimate(
    logprobs: Float32[Tensor, "B T"],
    ref_logprobs: Float32[Tensor, "B T"],
    mask: Bool[Tensor, "B T"],
    kind: KlKind,
) -> Float32[Tensor, "B T"]:
    """Estimate KL(policy || reference) in nats at each token sampled from the policy; 0 at masked tokens.

    Schulman's estimators (joschu.net/blog/kl-approx.html), with d = logprobs - ref_logprobs:

    - ``k1``: d; unbiased, either sign; the expectation of its gradient is 0.
    - ``k2``: d^2 / 2; biased, but the expectation of its gradient is the gradient of the KL.
    - ``k3``: exp(-d) - 1 + d; unbiased, never negative; the expectation of its gradient is the
      gradient of KL(reference || policy).
    - ``abs``: |d|; biased; its gradient is the sign of d, 0 where d is 0.
    - ``k1+``, ``k3+``: straight-through, the value of k1 or k3 with the gradient of k2: unbiased in both
      (arXiv 2506.09477).

    Differentiable in ``logprobs`` only. A masked token may hold NaN or inf in either input.

    Raises:
        ValueError: if ``kind`` is none of these.
    """
    if kind not in KL_KINDS:
        raise ValueError(f"unknown KL estimator `{kind}`: choose one of {', '.join(KL_KINDS)}")
    difference = where_masked(logprobs, mask) - where_masked(ref_logprobs.detach(), mask)
    if not kind.endswith("+"):
        return _estimate(difference, kind)
    gradient = _estimate(difference, "k2")
    return _estimate(difference.detach(), kind.removesuffix("+")) + (gradient - gradient.detach())


def _estimate(difference: Float32[Tensor, "B T"], kind: str) -> Float32[Tensor, "B T"]:
    match kind:
        case "k1":
            return difference
        case "k2":
            return difference.square() / 2
        case "abs":
            return difference.abs()
        case _:
            return torch.expm1(-difference) + difference
