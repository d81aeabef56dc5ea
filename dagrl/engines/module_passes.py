"""Passes of one module over micro-batches, in step over the ranks that share its weights out."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Iterable, Iterator
from typing import TYPE_CHECKING

import torch
from torch import nn

from dagrl.engines.modules import decoder_layers
from dagrl.engines.parallel import SINGLE, DataParallel
from dagrl.engines.sharding import reshard, shard
from dagrl.graph.progress import Progress
from dagrl.graph.specs import Precision

if TYPE_CHECKING:
    from transformers import PreTrainedModel


class ModulePasses(ABC):
    """Runs ``module``, which holds the model, over micro-batches; the model stays in eval mode unless told otherwise.

    ``precision="bf16"`` computes under autocast over the model's own weights. Where ranks share the weights out,
    every rank must run the same number of passes, with rows or without.
    """

    def __init__(
        self,
        model: PreTrainedModel,
        module: nn.Module,
        *,
        precision: Precision,
        micro_batch_tokens: int,
        parallel: DataParallel = SINGLE,
    ) -> None:
        self.model = model.eval()
        self.micro_batch_tokens = micro_batch_tokens
        self.parallel = parallel
        self._bf16 = precision == "bf16"
        self._module = module
        if parallel.sharded:
            shard(module, decoder_layers(model), parallel)
        self.device = next(model.parameters()).device

    @abstractmethod
    def empty_pass(self) -> object:
        """A pass that reaches every weight and changes nothing."""

    def missing_passes(self, own: int) -> int:
        """How many passes this rank lacks to as many as the rank with most; asked before any of them."""
        return self.parallel.max(own) - own if self.parallel.sharded else 0

    def in_step(self, micro_batches: Iterable[slice], num_rows: int) -> Iterator[slice]:
        """Each micro-batch, for one pass without gradient over it; then the passes that this rank lacks are run.

        Progress is told of the ``num_rows`` rows.
        """
        batches = list(micro_batches)
        missing = self.missing_passes(len(batches))
        progress = Progress(num_rows)
        for rows in batches:
            yield rows
            progress.advance(rows.stop - rows.start)
        for _ in range(missing):
            self.empty_pass()
        reshard(self._module)

    def _autocast(self) -> torch.autocast:
        return torch.autocast(self.device.type, torch.bfloat16, enabled=self._bf16)
