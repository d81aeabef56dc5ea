"""What the workers of all roles share: one model on its device, its tokenizer, its training and its state."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING, Protocol

import torch
from jaxtyping import Float32, Int64
from torch import Tensor

from dagrl.compiler.plan import Action
from dagrl.data.metrics import Metrics
from dagrl.engines.model_saving import save_model
from dagrl.engines.models import dtype_of, keep_score_cap, load_tokenizer
from dagrl.engines.modules import as_module
from dagrl.engines.packaged import ready_model
from dagrl.engines.parallel import DataParallel
from dagrl.engines.passes import Passes
from dagrl.engines.profiler import DistProfiler
from dagrl.engines.residence import MODEL, OPTIMIZER, Residence
from dagrl.engines.sharding import tensor_bytes
from dagrl.engines.state import StatePart, WorkerState
from dagrl.engines.training import Trainer
from dagrl.errors import DagrlError
from dagrl.graph.roles import LossColumns, TokenBatch, UpdatePlan
from dagrl.graph.specs import WorkerGroup
from dagrl.workers.overrides import apply_overrides

if TYPE_CHECKING:
    from transformers import PreTrainedModel


class Loader(Protocol):
    """Reads a role's model."""

    def __call__(self, folder_or_name: str, /, *, attn_implementation: str) -> PreTrainedModel:
        """The model on the CPU, or without weights on the meta device; in evaluation mode."""
        ...


_MOVES: Mapping[Action, tuple[Callable[[Residence, str], None], str]] = {
    "offload_model": (Residence.offload, MODEL),
    "offload_optimizer": (Residence.offload, OPTIMIZER),
    "onload_model": (Residence.onload, MODEL),
    "onload_optimizer": (Residence.onload, OPTIMIZER),
}


class RoleWorker:
    """One rank's part of a worker group, whatever its role. The weights are fp32.

    Those that train call ``_train`` once their passes are made; the others are frozen. Every rank must call
    ``update``, and where ranks share the weights out also ``save``, in one order; a rank without rows passes none.

    Raises:
        ConfigError: when model or tokenizer cannot be loaded, or what the group says in place of their files does
            not fit them.
    """

    def __init__(self, group: WorkerGroup, load: Loader, *, parallel: DataParallel) -> None:
        self.group = group
        self.parallel = parallel
        self.device = torch.device("cuda" if torch.cuda.is_available() else "cpu")
        reference = ready_model(group.model.model)
        self.model = load(reference, attn_implementation="sdpa" if self.device.type == "cuda" else "eager")
        keep_score_cap(self.model)
        # A model that may not fit moves layer by layer, as it is shared out; one without weights is nowhere.
        if not parallel.sharded and self.model.device.type != "meta":
            as_module(self.model).to(device=self.device)
        self.tokenizer = load_tokenizer(reference, trust_remote_code=group.model.trust_remote_code)
        apply_overrides(group.model, self.model, self.tokenizer)
        self._trainer: Trainer | None = None
        self._optimizer_bytes = 0

    @DistProfiler.annotate()
    def update(
        self,
        tokens: TokenBatch,
        columns: LossColumns,
        seeds: Int64[Tensor, " B"],
        plan: UpdatePlan,
        rollout_logprobs: Float32[Tensor, "B T"] | None = None,
    ) -> Metrics:
        """Run the plan's optimizer steps.

        Raises:
            DagrlError: for a frozen model.
        """
        if self._trainer is None:
            raise DagrlError(f"worker group `{self.group.name}` has no optimizer")
        self.residence.require(MODEL, OPTIMIZER)
        return self._trainer.update(tokens, columns, seeds, plan, rollout_logprobs)

    @DistProfiler.annotate()
    def save(self, folder: Path) -> None:
        """Have rank 0 write the model in Hugging Face format, in bf16 unless its precision is fp32."""
        dtype = dtype_of(self.group.model.precision)
        if self.parallel.rank == 0 or self.parallel.sharded:
            with self.residence.present(MODEL):  # where ranks share it out it is put together on its device
                save_model(self.model, self.tokenizer, folder, dtype=dtype, writes=self.parallel.rank == 0)

    @cached_property
    def residence(self) -> Residence:
        """Where the model and its optimizer's state are."""
        move = None if self._trainer is None else self._trainer.move_optimizer
        return Residence(as_module(self.model), self.group.name, move)

    @cached_property
    def weight_bytes(self) -> int:
        """Of the weights on this rank, those of the rollout included, as when all of them are in memory."""
        own = tensor_bytes(parameter for model in self._models() for parameter in model.parameters())
        return own + self._engine_bytes()

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
            with self.residence.present(MODEL), self.residence.present(OPTIMIZER):
                self._trainer.load_state(parts)

    def phase(self, action: Action, level: int) -> None:
        """Have what is trained leave memory or come back, or a rollout engine sleep or wake.

        Raises:
            DagrlError: when there is no rollout engine.
        """
        if action in _MOVES:
            move, part = _MOVES[action]
            move(self.residence, part)
            return
        raise DagrlError(f"worker group `{self.group.name}` has no rollout engine: there is nothing to {action}")

    def _train(self, passes: Passes, *, total_steps: int, dropout: bool, role: str) -> None:
        """Make the trainer of the passes if the group has an optimizer, and freeze the model if not."""
        optimizer = self.group.model.optimizer
        if optimizer is None:
            self.model.requires_grad_(False)
        else:
            self._trainer = Trainer(passes, optimizer, total_steps=total_steps, dropout=dropout, role=role)

    def _start_offloaded(self) -> None:
        """Leave the device to others, if the group's spec says so, until a call needs the weights."""
        if self.group.model.offload and self.group.follows is None:
            self.residence.offload(MODEL)

    def _models(self) -> Iterator[PreTrainedModel]:
        """The models whose weights this rank holds."""
        yield self.model

    def _engine_bytes(self) -> int:
        """Of the weights that a rollout engine holds beside these models."""
        return 0
