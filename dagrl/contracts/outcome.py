"""What a run gave, row by row and without padding, and how two runs differ."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from typing import Any

import torch
from jaxtyping import Bool
from torch import Tensor

from dagrl.data.equality import equal
from dagrl.data.metrics import Metrics

_RTOL, _ATOL = 1e-4, 1e-5
_SHOWN = 6


@dataclass(frozen=True)
class Outcome:
    """Each column as a list of rows, a row holding only the places that mean something; and the metrics."""

    rows: Mapping[str, Sequence[Any]]
    metrics: Metrics

    def same_rows(self, other: Outcome, index: Sequence[int], names: Sequence[str] = ()) -> str | None:
        """How the rows at ``index`` differ from the rows of ``other``, or None."""
        for name in names or self.rows:
            if name not in other.rows:
                return f"`{name}` is missing"
            for place, row in enumerate(index):
                before, after = self.rows[name][row], other.rows[name][place]
                if not _close(before, after):
                    return f"{_quoted(name)} of row {row} was {shown(before)} and became {shown(after)}"
        return None

    def same_metrics(self, metrics: Metrics) -> str | None:
        """How the metrics differ from ``metrics``, or None."""
        if self.metrics.keys() != metrics.keys():
            return f"metric {_quoted(min(self.metrics.keys() ^ metrics.keys()))} comes and goes"
        for name, metric in self.metrics.items():
            before, after = asdict(metric), asdict(metrics[name])
            if type(metric) is not type(metrics[name]) or not all(_near(before[key], after[key]) for key in before):
                return f"metric `{name}` was {metric} and became {metrics[name]}"
        return None

    def difference(self, other: Outcome, index: Sequence[int]) -> str | None:
        """How rows or metrics differ, or None."""
        return self.same_rows(other, index) or self.same_metrics(other.metrics)


def real_rows(column: Any, places: Bool[Tensor, "B W"] | None) -> list[Any]:
    """The rows of a column at ``places``; a flag column also says whether it is True anywhere else."""
    if places is None or not isinstance(column, Tensor):
        return list(column)
    kept = [row[mask] for row, mask in zip(column, places, strict=True)]
    if column.dtype != torch.bool:
        return kept
    stray = [row[~mask].any().reshape(1) for row, mask in zip(column, places, strict=True)]
    return [torch.cat([row.flatten(), extra]) for row, extra in zip(kept, stray, strict=True)]


def _close(before: Any, after: Any) -> bool:
    if not (isinstance(before, Tensor) and isinstance(after, Tensor)):
        return equal(before, after)
    if before.shape != after.shape or before.dtype != after.dtype:
        return False
    if not before.is_floating_point():
        return torch.equal(before, after)
    return torch.allclose(before, after, rtol=_RTOL, atol=_ATOL, equal_nan=True)


def _near(before: float, after: float) -> bool:
    return (before != before and after != after) or math.isclose(before, after, rel_tol=_RTOL, abs_tol=_ATOL)


def shown(value: Any) -> str:
    """A value as a message prints it: a few digits of a few numbers."""
    if not isinstance(value, Tensor):
        return repr(value)
    numbers = [f"{number:.4g}" if isinstance(number, float) else str(number) for number in value.flatten().tolist()]
    listed = ", ".join(numbers[:_SHOWN]) + (", ..." if len(numbers) > _SHOWN else "")
    return listed if value.ndim == 0 else f"[{listed}]"


def _quoted(name: str) -> str:
    return name if " " in name else f"`{name}`"
