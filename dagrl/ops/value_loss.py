"""The loss of a critic's values against their targets."""

import torch
from jaxtyping import Bool, Float32
from torch import Tensor

from dagrl.data.metrics import ExplainedVariance
from dagrl.ops.masks import where_masked


def value_clip_loss(
    values: Float32[Tensor, "B T"],
    old_values: Float32[Tensor, "B T"],
    returns: Float32[Tensor, "B T"],
    mask: Bool[Tensor, "B T"],
    *,
    eps: float | None = 0.2,
) -> tuple[Float32[Tensor, "B T"], Bool[Tensor, "B T"]]:
    """The clipped value loss of PPO (openai/baselines; arXiv 2005.12729) at each token, and which tokens it clips.

    loss = max((v - R)^2, (v' - R)^2) / 2 with v' = clip(v, v_old - eps, v_old + eps), v_old the critic's values
    before the update: a value does not profit from leaving the range. Clipped is a trained token whose v' has the
    larger error; its gradient is 0, elsewhere it is v - R. ``eps`` None is the plain squared error, halved.
    Differentiable in ``values`` only.

    Degenerate cases: when ``values`` equals ``old_values`` nothing is clipped; a masked token gives 0 and may hold NaN
    or inf in every input.

    Raises:
        ValueError: if ``eps`` is negative.
    """
    if eps is not None and not eps >= 0:
        raise ValueError(f"eps is {eps}, but it may not be negative; None does not clip")
    value, target = where_masked(values, mask), where_masked(returns.detach(), mask)
    error = value - target
    if eps is None:
        return error.square() / 2, torch.zeros_like(mask)
    old = where_masked(old_values.detach(), mask)
    step = value.detach() - old
    bounded = old + step.clamp(-eps, eps) - target
    error = error + 0.0 * bounded  # what is not finite in the old value comes through, and has a gradient
    clipped = (step.abs() > eps) & (bounded.abs() > error.detach().abs())
    return torch.where(clipped, bounded, error).square() / 2, clipped


def explained_variance(
    values: Float32[Tensor, "B T"], returns: Float32[Tensor, "B T"], mask: Bool[Tensor, "B T"]
) -> ExplainedVariance:
    """How much of the returns' variance over trained tokens the values explain, in sums that merge exactly.

    1 - Var(returns - values) / Var(returns), as openai/baselines logs it; float64. Degenerate case: returns that are
    all equal have no variance to explain, and so do none at all: NaN.
    """
    targets = returns.detach()[mask].double()
    errors = targets - values.detach()[mask].double()
    sums = torch.stack([targets.sum(), targets.square().sum(), errors.sum(), errors.square().sum()]).tolist()
    return ExplainedVariance(float(len(targets)), *sums)
