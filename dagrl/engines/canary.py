"""How far the rollout engine's log-probs are from the trainer's: metrics of every step, and the canary after a sync."""

from __future__ import annotations

from dataclasses import dataclass, field

import torch
from jaxtyping import Bool, Float32
from torch import Tensor

from dagrl.data.metrics import Metric
from dagrl.engines.parallel import DataParallel
from dagrl.errors import TrainingError
from dagrl.graph.roles import Canary
from dagrl.ops.masks import max_metric, mean_metric


@dataclass
class GapMeter:
    """Adds up the gap, in nats, over the micro-batches of a mini-batch on this rank; all that is not masked counts."""

    _sums: Tensor = field(default_factory=lambda: torch.zeros(4, dtype=torch.float64))

    def add(
        self, trainer: Float32[Tensor, "B T"], rollout: Float32[Tensor, "B T"], mask: Bool[Tensor, "B T"]
    ) -> dict[str, Metric]:
        """Count a micro-batch; its metrics."""
        gap = (trainer - rollout).abs()
        sums = [value[mask].double().sum() for value in (gap, rollout, trainer)]
        self._sums += torch.stack([*sums, mask.sum().double()]).cpu()
        return {"rollout/logprob_gap": mean_metric(gap, mask), "rollout/logprob_gap_max": max_metric(gap, mask)}

    def require_small(self, canary: Canary, step: int, parallel: DataParallel) -> None:
        """See that the mean gap over all ranks is tolerated; every rank must ask, and all raise or none.

        Without a token nothing is said.

        Raises:
            TrainingError: when it is larger, or no number.
        """
        gap, rollout, trainer, count = parallel.sum(self._sums.tolist())
        if count and not gap / count <= canary.tolerance:
            raise TrainingError(
                f"the rollout of `{canary.rollout}` does not draw from the weights that `{canary.group}` trains: in "
                f"step {step} the log-probs of its {int(count)} tokens are {gap / count:.4g} nats from the trainer's "
                f"in the mean, more than the {canary.tolerance:g} that are tolerated "
                f"(mean log-prob {rollout / count:.4f} by the rollout, {trainer / count:.4f} by the trainer). "
                "The weights did not reach the rollout engine whole, or it computes otherwise than the trainer: check "
                "its dtype, its attention and its chat template; the weights are those before this step. If such a gap "
                "is expected, raise the update's `logprob_gap_tolerance`, or turn it off with None"
            )
