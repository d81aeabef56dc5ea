"""One score for each whole sequence, by a model with a scalar head: what a reward model gives."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING

import torch
from jaxtyping import Float32, Int64
from torch import Tensor, nn

from dagrl.engines.module_passes import ModulePasses
from dagrl.engines.parallel import SINGLE, DataParallel
from dagrl.engines.scalar_head import scalar_head
from dagrl.graph.specs import Precision
from dagrl.ops.masks import pad_right

if TYPE_CHECKING:
    from transformers import PreTrainedModel


class SequenceScorer(ModulePasses):
    """Scores sequences of tokens at their last token, told by their lengths and never by token ids.

    transformers' own forward takes the last token that is not the pad token: where the pad token is the
    end-of-sequence token, as it often is, that is another one. Where ranks share the weights
    out, every rank must call, with rows or without.
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
        module = _LastToken(model)
        super().__init__(model, module, precision=precision, micro_batch_tokens=micro_batch_tokens, parallel=parallel)
        self._pad = pad_token_id

    @torch.no_grad()
    def score(self, sequences: Sequence[Sequence[int]], *, micro_batch_size: int = 0) -> Float32[Tensor, " B"]:
        """The score of each sequence, which has at least one token; it depends on no other sequence."""
        scores = torch.zeros(len(sequences))
        longest_first = sorted(range(len(sequences)), key=lambda row: -len(sequences[row]))
        lengths = [len(sequences[row]) for row in longest_first]
        for part in self.in_step(self._micro_batches(lengths, micro_batch_size), len(sequences)):
            rows = longest_first[part]
            scores[rows] = self._forward([sequences[row] for row in rows]).cpu()
        return scores

    def empty_pass(self) -> Float32[Tensor, " 1"]:
        """A pass over one token."""
        return self._forward([[self._pad]])

    def _micro_batches(self, lengths: Sequence[int], size: int) -> Iterator[slice]:
        """Sequences of like lengths, longest first: ``size`` of them, or as many as the token budget holds if 0."""
        start = 0
        while start < len(lengths):
            stop = min(start + (size or max(1, self.micro_batch_tokens // lengths[start])), len(lengths))
            yield slice(start, stop)
            start = stop

    def _forward(self, sequences: Sequence[Sequence[int]]) -> Tensor:
        ids, mask, lengths = pad_right(sequences, self._pad)
        with self._autocast():
            return self._module(ids.to(self.device), mask.to(self.device), lengths.to(self.device))


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
