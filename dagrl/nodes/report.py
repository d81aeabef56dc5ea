"""``report``: the root of an evaluation."""

import torch
from jaxtyping import Float32
from torch import Tensor

from dagrl.data.columns import Objects
from dagrl.data.metrics import Mean, Metrics
from dagrl.graph import node


@node()
def report(rewards: Float32[Tensor, " B"], data_source: Objects[str] | None = None) -> Metrics:
    """The mean reward of each data source as ``reward/mean/SOURCE``; unscorable (NaN) rows are left out.

    ``reward/mean`` over all rows is kept wherever rewards are written.
    """
    if data_source is None:
        return Metrics()
    scorable = ~rewards.isnan()
    metrics: dict[str, Mean] = {}
    for source in sorted(set(data_source)):
        of_source = torch.tensor([name == source for name in data_source]) & scorable
        metrics[f"reward/mean/{source}"] = Mean(float(rewards[of_source].double().sum()), float(of_source.sum()))
    return Metrics(metrics)
