"""vLLM's weight update inside one process: tensors are handed over as they are.

vLLM imports this module by its name, when an engine is started with the transfer ``NAME``.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

import torch
from torch import Tensor
from vllm.distributed.weight_transfer.base import (
    WeightTransferEngine,
    WeightTransferInitInfo,
    WeightTransferUpdateInfo,
)
from vllm.model_executor.model_loader.reload import finalize_layerwise_reload, initialize_layerwise_reload

#: What the transfer is called among vLLM's.
NAME = "dagrl"


@dataclass
class Nothing(WeightTransferInitInfo):
    """There is no connection to make."""


@dataclass
class Bucket(WeightTransferUpdateInfo):
    """Some weights by their Hugging Face names."""

    weights: list[tuple[str, Tensor]] = field(default_factory=list)


class InProcessTransfer(WeightTransferEngine[Nothing, Bucket]):
    """Loads buckets of checkpoint weights layer by layer, as vLLM's own transfers do."""

    init_info_cls = Nothing
    update_info_cls = Bucket

    def init_transfer_engine(self, init_info: Nothing) -> None:
        """Nothing is to be prepared."""

    def start_weight_update(self) -> None:
        """Have each layer wait for all of its weights."""
        initialize_layerwise_reload(self.model)

    def update_weights(self, update_info: dict[str, Any]) -> None:
        """Load a bucket, whose tensors the sender must leave as they are until the update is finished.

        A layer keeps those that came until all of its weights have, which may be in a later bucket.
        """
        self.receive_weights(self.parse_update_info(update_info))
        if self.device.type != "cpu":
            torch.accelerator.synchronize(self.device)

    def receive_weights(self, update_info: Bucket) -> None:
        """Hand the bucket to the model."""
        load: Any = self.model.load_weights  # every model of vLLM has it
        load(iter(update_info.weights))

    def finish_weight_update(self) -> None:
        """Finish the layers."""
        finalize_layerwise_reload(self.model, self.model_config)

    def shutdown(self) -> None:
        """Nothing is to be let go of."""
