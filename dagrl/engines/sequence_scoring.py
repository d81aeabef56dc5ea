"""One score for each whole sequence, by a model with a scalar head: what a reward model gives."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING

import torch
from jaxtyping import Float32, Int64
from torch import Tensor, nn

from dagrl.engines.parallel import SINGLE, DataParallel
from dagrl.engines.passes import decoder_layers
from dagrl.engines.scalar_head import scalar_head
from dagrl.engines.sharding import reshard, shard
from dagrl.graph.progress import Progress
from dagrl.graph.specs import Precision
from dagrl.ops.masks import pad_right

if TYPE_CHECKING:
    from transformers import PreTrainedModel


class SequenceScorer:
    """Scores sequences of tokens at their last token, told by their lengths and never by token ids.

    transformers' own forward takes the last token that is not the pad token: where the pad token is the
    end-of-sequence token, as it often is, that is another one. ``precision="bf16"`` computes under autocast. Where
    ranks share the weights out, every rank must call, with rows or without.
    """

    def __init__(
        self,
        model: PreTrainedModel,
        *,
        pad_token_id: int,
        precision: Precision,
        micro_batch_tokens: int,
        parallel: DataParallel = SINGLE,
    ) -> None:
        self.parallel = parallel
        self._pad = pad_token_id
        self._budget = micro_batch_tokens
        self._bf16 = precision == "bf16"
        self._module = _LastToken(model.eval())
        if parallel.sharded:
            shard(self._module, decoder_layers(model), parallel)
        self._device = next(model.parameters()).device

    @torch.no_grad()
    def score(self, sequences: Sequence[Sequence[int]], *, micro_batch_size: int = 0) -> Float32[Tensor, " B"]:
        """The score of each sequence, which has at least one token; it depends on no other sequence."""
        scores = torch.zeros(len(sequences))
        batches = list(self._micro_batches([len(sequence) for sequence in sequences], micro_batch_size))
        most = self.parallel.max(len(batches)) if self.parallel.sharded else len(batches)
        progress = Progress(len(sequences))
        for rows in batches:
            scores[rows] = self._forward([sequences[row] for row in rows]).cpu()
            progress.advance(len(rows))
        for _ in range(most - len(batches)):
            self._forward([[self._pad]])
        reshard(self._module)
        return scores

    def _micro_batches(self, lengths: Sequence[int], size: int) -> Iterator[list[int]]:
        """Rows of like lengths, longest first: ``size`` of them, or as many as the token budget holds if 0."""
        order = sorted(range(len(lengths)), key=lambda row: -lengths[row])
        while order:
            count = size or max(1, self._budget // lengths[order[0]])
            yield order[:count]
            order = order[count:]

    def _forward(self, sequences: Sequence[Sequence[int]]) -> Tensor:
        ids, mask, lengths = pad_right(sequences, self._pad)
        with torch.autocast(self._device.type, torch.bfloat16, enabled=self._bf16):
            return self._module(ids.to(self._device), mask.to(self._device), lengths.to(self._device))


class _LastToken(nn.Module):
    """From tokens to scores in one module, so that hooks around its forward see every use of the weights."""

    def __init__(self, model: PreTrainedModel) -> None:
        super().__init__()
        self.model = model

    def forward(self, ids: Int64[Tensor, "B S"], mask: Tensor, lengths: Int64[Tensor, " B"]) -> Float32[Tensor, " B"]:
        """The score at each row's last token, in fp32; rows are padded on the right."""
        hidden = self.model.base_model(input_ids=ids, attention_mask=mask.long(), use_cache=False).last_hidden_state
        last = hidden[torch.arange(len(ids), device=ids.device), lengths - 1]
        with torch.autocast(ids.device.type, enabled=False):
            return scalar_head(self.model)(last.float()).squeeze(-1)
