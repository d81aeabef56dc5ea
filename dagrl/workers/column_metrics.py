"""Statistics that are kept of row columns wherever they are written, as the legend says."""

import torch
from torch import Tensor

from dagrl.data.columns import LEGEND
from dagrl.data.metrics import Max, Mean, Metric, Metrics, Min, Sum
from dagrl.workers.node_runner import Columns


def column_metrics(columns: Columns) -> Metrics:
    """``NAME/mean``, ``/max``, ``/min`` and ``/unscorable`` (NaN rows) of each column with a metric name.

    A flag column has its share of True rows alone, as ``NAME``.
    """
    metrics: dict[str, Metric] = {}
    for name, column in columns.items():
        base = LEGEND[name].metric if name in LEGEND else None
        if base is not None and isinstance(column, Tensor):
            metrics |= _statistics(base, column)
    return Metrics(metrics)


def _statistics(base: str, column: Tensor) -> dict[str, Metric]:
    if column.dtype.is_floating_point:
        unscorable = column.isnan()
        scorable = column[~unscorable].double()
        statistics = {f"{base}/unscorable": Sum(float(unscorable.sum()))}
    else:
        scorable, statistics = column.double(), {}
    mean = Mean(float(scorable.sum()), float(scorable.numel()))
    if column.dtype == torch.bool:
        return {base: mean}
    if scorable.numel() == 0:
        return {f"{base}/mean": mean, **statistics}
    return {
        f"{base}/mean": mean,
        f"{base}/max": Max(float(scorable.max())),
        f"{base}/min": Min(float(scorable.min())),
        **statistics,
    }
