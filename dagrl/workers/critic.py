"""The worker of a critic: values and training of one model with a scalar head."""

from __future__ import annotations

from collections.abc import Sequence
from functools import cached_property
from pathlib import Path

import torch
from jaxtyping import Float32, Int64
from torch import Tensor

from dagrl.data.metrics import Metrics
from dagrl.engines.models import load_tokenizer, save_model
from dagrl.engines.packaged import ready_model
from dagrl.engines.parallel import SINGLE, DataParallel
from dagrl.engines.passes import as_module
from dagrl.engines.scalar_head import load_scalar_model, scalar_head
from dagrl.engines.state import StatePart, WorkerState
from dagrl.engines.training import Trainer
from dagrl.engines.value_scoring import ValueScorer
from dagrl.errors import DagrlError
from dagrl.graph.roles import LossColumns, TokenBatch, UpdatePlan
from dagrl.graph.specs import WorkerGroup
from dagrl.workers.memory import tensor_bytes


def with_random_head(group: WorkerGroup) -> CriticWorker:
    """A critic whose head is drawn, always the same, in place of its model's: its values tell tokens apart."""
    worker = CriticWorker(group, total_steps=1)
    draw = torch.Generator().manual_seed(0)
    for parameter in scalar_head(worker.model).parameters():
        parameter.data.copy_(torch.randn(parameter.shape, generator=draw) * 0.1)
    return worker


class CriticWorker:
    """Fulfils ``Critic`` in this process, as one rank of ``parallel``. The weights are fp32.

    Every rank must call ``update``, and where ranks share the weights out also ``compute_values`` and ``save``, in
    one order; a rank without rows passes none.

    Raises:
        ConfigError: when there is no model, or it cannot give one value for each token.
    """

    def __init__(self, group: WorkerGroup, *, total_steps: int, parallel: DataParallel = SINGLE) -> None:
        spec = group.model
        self.group = group
        self.parallel = parallel
        self.device = torch.device("cuda" if torch.cuda.is_available() else "cpu")
        reference = ready_model(spec.model)
        attention = "sdpa" if self.device.type == "cuda" else "eager"
        self.model = load_scalar_model(
            reference,
            dtype=torch.float32,
            attn_implementation=attention,
            new_head=True,
            trust_remote_code=spec.trust_remote_code,
            allow_pickle=spec.allow_pickle,
        )
        if not parallel.sharded:  # a model that may not fit moves layer by layer, as it is shared out
            as_module(self.model).to(device=self.device)
        self.tokenizer = load_tokenizer(
            reference, trust_remote_code=spec.trust_remote_code
        )  # its tokens are the actor's; exported with the model
        self._scorer = ValueScorer(
            self.model, precision=spec.precision, micro_batch_tokens=spec.micro_batch_tokens, parallel=parallel
        )
        self._trainer: Trainer | None = None
        self._optimizer_bytes = 0
        if spec.optimizer is not None:
            self._trainer = Trainer(self._scorer, spec.optimizer, total_steps=total_steps, dropout=False, role="critic")
        else:
            self.model.requires_grad_(False)

    def compute_values(self, tokens: TokenBatch, *, micro_batch_size: int = 0) -> Float32[Tensor, "B T"]:
        """Values before each trained token under the current weights, without gradient."""
        return self._scorer.compute(tokens, micro_batch_size=micro_batch_size)

    def update(self, tokens: TokenBatch, columns: LossColumns, seeds: Int64[Tensor, " B"], plan: UpdatePlan) -> Metrics:
        """Run the plan's optimizer steps."""
        if self._trainer is None:
            raise DagrlError(f"worker group `{self.group.name}` has no optimizer")
        return self._trainer.update(tokens, columns, seeds, plan, None)

    def save(self, folder: Path) -> None:
        """Have rank 0 write the model with its head in Hugging Face format, in bf16 unless the critic is fp32."""
        dtype = torch.float32 if self.group.model.precision == "fp32" else torch.bfloat16
        if self.parallel.rank == 0 or self.parallel.sharded:
            save_model(self.model, self.tokenizer, folder, dtype=dtype, writes=self.parallel.rank == 0)

    @cached_property
    def weight_bytes(self) -> int:
        """Of the weights on this rank."""
        return tensor_bytes(self.model.parameters())

    @property
    def optimizer_bytes(self) -> int:
        """Of the optimizer's state on this rank: none before the first update."""
        if self._optimizer_bytes == 0 and self._trainer is not None:
            self._optimizer_bytes = tensor_bytes(self._trainer.optimizer_tensors())
        return self._optimizer_bytes

    def state(self) -> WorkerState | None:
        """This rank's part of what a resumed run needs; None for a frozen model."""
        return None if self._trainer is None else self._trainer.state()

    def load_state(self, parts: Sequence[StatePart]) -> None:
        """Go on from the parts of all ranks that saved, however many there were.

        Raises:
            CheckpointError: when the parts do not hold this model.
        """
        if self._trainer is not None:
            self._trainer.load_state(parts)
