"""Scalar float64 references for value losses: plain Python numbers and loops, gradients written out by hand."""

from math import fsum, nan

Rows = list[list[float]]
Mask = list[list[bool]]


def value_clip(new: Rows, old: Rows, returns: Rows, mask: Mask, eps: float) -> tuple[Rows, Rows, float]:
    """Losses and d loss / d new at each place, 0 at masked ones, and the share of trained tokens that are clipped."""
    losses, gradients, clipped, trained = [], [], 0, 0
    for new_row, old_row, return_row, mask_row in zip(new, old, returns, mask, strict=True):
        loss_row, gradient_row = [], []
        for v, v_old, target, keep in zip(new_row, old_row, return_row, mask_row, strict=True):
            loss = gradient = 0.0
            if keep:
                trained += 1
                held = v_old - eps if v < v_old - eps else v_old + eps if v > v_old + eps else v
                loss = 0.5 * (v - target) ** 2
                gradient = v - target
                if (held - target) ** 2 > (v - target) ** 2:
                    clipped += 1
                    loss = 0.5 * (held - target) ** 2
                    gradient = 0.0
            loss_row.append(loss)
            gradient_row.append(gradient)
        losses.append(loss_row)
        gradients.append(gradient_row)
    return losses, gradients, clipped / trained if trained else nan


def explained_variance(targets: list[float], forecasts: list[float]) -> float:
    """1 - Var(target - forecast) / Var(target), by deviations from the means."""
    if not targets:
        return nan
    errors = [target - forecast for target, forecast in zip(targets, forecasts, strict=True)]
    varied, left = _squared_deviations(targets), _squared_deviations(errors)
    return 1.0 - left / varied if max(targets) != min(targets) else nan


def _squared_deviations(numbers: list[float]) -> float:
    mean = fsum(numbers) / len(numbers)
    return fsum((number - mean) ** 2 for number in numbers)
