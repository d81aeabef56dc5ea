"""Scalar reference for dynamic sampling: plain Python numbers and loops."""

from math import isnan


def mixed_rows(rewards: list[float], group_ids: list[int]) -> list[bool]:
    """Whether a row's group has two scorable rewards that differ."""
    kept = []
    for group in group_ids:
        known = [r for r, g in zip(rewards, group_ids, strict=True) if g == group and not isnan(r)]
        kept.append(any(first != second for first in known for second in known))
    return kept
