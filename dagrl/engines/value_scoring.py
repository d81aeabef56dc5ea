"""Values of the response tokens under a critic, with or without gradient."""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from typing import TYPE_CHECKING

import torch
from jaxtyping import Bool, Float, Float32
from torch import Tensor, nn

from dagrl.data.metrics import Metric
from dagrl.engines.parallel import SINGLE, DataParallel
from dagrl.engines.passes import Passes, one_token
from dagrl.engines.projection import LogitReader
from dagrl.engines.scalar_head import scalar_head
from dagrl.errors import NodeError
from dagrl.graph.roles import TokenBatch
from dagrl.graph.specs import Precision

if TYPE_CHECKING:
    from transformers import PreTrainedModel


class ValueScorer(Passes):
    """Values of token batches, as the passes of a model with a scalar head.

    The value at response place t is read from the state that predicts token t: it is the value before that token,
    and depends on no later one.
    """

    output_names = ("new_values",)

    def __init__(
        self,
        model: PreTrainedModel,
        *,
        precision: Precision,
        micro_batch_tokens: int,
        parallel: DataParallel = SINGLE,
    ) -> None:
        module = _Values(model)
        super().__init__(model, module, precision=precision, micro_batch_tokens=micro_batch_tokens, parallel=parallel)

    def outputs(
        self, tokens: TokenBatch, wanted: Collection[str], readers: Sequence[LogitReader] = ()
    ) -> tuple[dict[str, Float32[Tensor, "B T"]], list[Tensor]]:
        """``new_values``; there are no logits to read.

        Raises:
            NodeError: when there are readers.
        """
        if readers:
            raise NodeError("a critic has no logits: a loss with `project=` belongs to a policy's update")
        return {"new_values": self.forward(tokens)}, []

    def compute_outputs(self, tokens: TokenBatch, *, micro_batch_size: int) -> dict[str, Float32[Tensor, "B T"]]:
        """``outputs`` without gradient, in micro-batches, on the device of the input."""
        return {"new_values": self.compute(tokens, micro_batch_size=micro_batch_size)}

    def observed(self, outputs: Mapping[str, Tensor], mask: Bool[Tensor, "B T"]) -> dict[str, Metric]:
        """Nothing: what is to be seen of values is in their loss."""
        return {}

    def forward(self, tokens: TokenBatch) -> Float32[Tensor, "B T"]:
        """Values, 0 where response_mask is False."""
        mask = tokens.response_mask
        with self._autocast():
            values = self._module(tokens)
        return values.new_zeros(mask.shape).masked_scatter(mask, values)

    @torch.no_grad()
    def compute(self, tokens: TokenBatch, *, micro_batch_size: int = 0) -> Float32[Tensor, "B T"]:
        """``forward`` without gradient, in micro-batches, on the device of the input."""
        home = tokens.response_mask.device
        values = torch.zeros(tokens.response_mask.shape, device=home)
        for rows in self.in_step(self.micro_batches(tokens, micro_batch_size), len(values)):
            part = self.forward(self.take(tokens, rows))
            values[rows, : part.shape[1]] = part.to(home)
        return values

    def empty_pass(self) -> Float[Tensor, ""]:
        """A pass that reaches every weight and changes nothing: a loss of 0."""
        return self.forward(one_token(self.device)).sum() * 0.0


class _Values(nn.Module):
    """From tokens to values in one module, so that hooks around its forward see every use of the weights."""

    def __init__(self, model: PreTrainedModel) -> None:
        super().__init__()
        self.model = model

    def forward(self, tokens: TokenBatch) -> Tensor:
        """The value before each trained token, [N]; in fp32, whatever the body computes in."""
        mask = tokens.response_mask
        hidden = self.model.base_model(
            input_ids=tokens.input_ids,
            attention_mask=tokens.attention_mask.long(),
            position_ids=tokens.position_ids,
            use_cache=False,
        ).last_hidden_state
        end = hidden.shape[1] - 1
        states = hidden[:, end - mask.shape[1] : end][mask]
        with torch.autocast(states.device.type, enabled=False):
            return scalar_head(self.model)(states.float()).squeeze(-1)
