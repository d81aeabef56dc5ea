"""The worker of a critic: values and training of one model with a scalar head."""

from __future__ import annotations

from functools import partial

import torch
from jaxtyping import Float32
from torch import Tensor

from dagrl.engines.parallel import SINGLE, DataParallel
from dagrl.engines.profiler import DistProfiler
from dagrl.engines.residence import MODEL
from dagrl.engines.scalar_head import load_scalar_model, scalar_head
from dagrl.engines.value_scoring import ValueScorer
from dagrl.graph.roles import TokenBatch
from dagrl.graph.specs import WorkerGroup
from dagrl.workers.base import RoleWorker


def with_random_head(group: WorkerGroup) -> CriticWorker:
    """A critic whose head is drawn, always the same, in place of its model's: its values tell tokens apart."""
    worker = CriticWorker(group, total_steps=1)
    draw = torch.Generator().manual_seed(0)
    for parameter in scalar_head(worker.model).parameters():
        parameter.data.copy_(torch.randn(parameter.shape, generator=draw) * 0.1)
    return worker


class CriticWorker(RoleWorker):
    """Fulfils ``Critic`` in this process, as one rank of ``parallel``. The weights are fp32.

    Every rank must call ``update``, and where ranks share the weights out also ``compute_values`` and ``save``, in
    one order; a rank without rows passes none.

    Raises:
        ConfigError: when there is no model, or it cannot give one value for each token.
    """

    def __init__(self, group: WorkerGroup, *, total_steps: int, parallel: DataParallel = SINGLE) -> None:
        spec = group.model
        load = partial(
            load_scalar_model,
            dtype=torch.float32,
            new_head=True,
            trust_remote_code=spec.trust_remote_code,
            allow_pickle=spec.allow_pickle,
        )
        super().__init__(group, load, parallel=parallel)
        self._scorer = ValueScorer(
            self.model, precision=spec.precision, micro_batch_tokens=spec.micro_batch_tokens, parallel=parallel
        )
        self._train(self._scorer, total_steps=total_steps, dropout=False, role="critic")
        self._start_offloaded()

    @DistProfiler.annotate()
    def compute_values(self, tokens: TokenBatch, *, micro_batch_size: int = 0) -> Float32[Tensor, "B T"]:
        """Values before each trained token under the current weights, without gradient."""
        self.residence.require(MODEL)
        return self._scorer.compute(tokens, micro_batch_size=micro_batch_size)
