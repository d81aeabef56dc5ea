"""A history as a row of small bars, or as several rows where there is room."""

from __future__ import annotations

import math
from collections.abc import Sequence

from dagrl.tui.series import Point

_BARS = " ▁▂▃▄▅▆▇█"


def spark(points: Sequence[Point], width: int, rows: int, *, last_step: int, holds: bool = True) -> list[str]:
    """The points over the steps from the start of the run to ``last_step``, from left to right, the top row first.

    The lowest and highest value span the height. Each column shows the mean of its steps; one without points shows the
    value before it if it ``holds``, else nothing.
    """
    columns = _columns(points, width, max(last_step, width - 1, 1))
    known = [value for value in columns if value is not None]
    if width <= 0 or not known:
        return [" " * max(0, width)] * rows
    low, high = min(known), max(known)
    filled = _holding(columns) if holds else columns
    levels = [0 if value is None else _level(value, low, high, rows) for value in filled]
    return ["".join(_BARS[min(8, max(0, level - 8 * row))] for level in levels) for row in reversed(range(rows))]


def _columns(points: Sequence[Point], width: int, last_step: int) -> list[float | None]:
    sums, counts = [0.0] * width, [0] * width
    if width <= 0:
        return []
    for step, value in points:
        column = min(width - 1, max(0, step * (width - 1) // last_step))
        sums[column] += value
        counts[column] += 1
    means = [total / number if number else None for total, number in zip(sums, counts, strict=True)]
    return [mean if mean is not None and math.isfinite(mean) else None for mean in means]


def _holding(columns: list[float | None]) -> list[float | None]:
    """Gaps between points filled with the value before them; what comes after the last point stays empty."""
    end = max((index for index, value in enumerate(columns) if value is not None), default=-1)
    held: float | None = None
    filled: list[float | None] = []
    for index, value in enumerate(columns):
        held = value if value is not None else held
        filled.append(held if index <= end else None)
    return filled


def _level(value: float, low: float, high: float, rows: int) -> int:
    """From 1 to eight for each row; a history that never changed is a flat line."""
    if not math.isfinite(high - low) or high <= low:
        return 1
    return 1 + int((value - low) / (high - low) * (8 * rows - 1) + 0.5)
