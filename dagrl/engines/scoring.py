"""Log-probs and entropy of response tokens under a causal language model, with or without gradient."""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping
from typing import TYPE_CHECKING, NamedTuple

import torch
from jaxtyping import Bool, Float, Float32, Int64
from torch import Tensor, nn
from torch.utils.checkpoint import checkpoint

from dagrl.data.metrics import Metric
from dagrl.engines.parallel import SINGLE, DataParallel
from dagrl.engines.passes import Passes, one_token
from dagrl.engines.sharding import reshard
from dagrl.errors import TrainingError
from dagrl.graph.progress import Progress
from dagrl.graph.roles import LogProbs, TokenBatch
from dagrl.graph.specs import Precision
from dagrl.ops.logprobs import token_logprobs
from dagrl.ops.masks import mean_metric

if TYPE_CHECKING:
    from transformers import PreTrainedModel

#: Logits that exist at a time; beyond it the head runs chunk by chunk and again in the backward pass.
MAX_LOGITS = 1 << 26

Head = Callable[[Tensor], Tensor]


class ResponseTokens(NamedTuple):
    """The trained tokens of a batch, padding gone: what predicts each, and what it is."""

    hidden: Float[Tensor, "N H"]
    targets: Int64[Tensor, " N"]
    temperatures: Float32[Tensor, " N"]


class Scorer(Passes):
    """Log-probs and entropy of token batches, as the passes of a causal language model."""

    def __init__(
        self,
        model: PreTrainedModel,
        *,
        precision: Precision,
        micro_batch_tokens: int,
        parallel: DataParallel = SINGLE,
    ) -> None:
        module = _Scoring(model.eval())
        super().__init__(model, module, precision=precision, micro_batch_tokens=micro_batch_tokens, parallel=parallel)

    def outputs(self, tokens: TokenBatch, wanted: Collection[str]) -> dict[str, Float32[Tensor, "B T"]]:
        """``new_logprobs`` and ``new_entropy``; the latter has no gradient unless it is wanted."""
        scored = self.forward(tokens, with_entropy_grad="new_entropy" in wanted)
        return {"new_logprobs": scored.logprobs, "new_entropy": scored.entropy}

    def observed(self, outputs: Mapping[str, Tensor], mask: Bool[Tensor, "B T"]) -> dict[str, Metric]:
        """The policy's entropy."""
        return {"actor/entropy": mean_metric(outputs["new_entropy"].detach(), mask)}

    def forward(self, tokens: TokenBatch, *, with_entropy_grad: bool = False) -> LogProbs:
        """Log-probs and entropy, [B T] each, 0 where response_mask is False."""
        mask = tokens.response_mask
        with torch.autocast(self.device.type, torch.bfloat16, enabled=self._bf16):
            logprobs, entropy = self._module(tokens, with_entropy_grad)
        blank = logprobs.new_zeros(mask.shape)
        return LogProbs(blank.masked_scatter(mask, logprobs), blank.masked_scatter(mask, entropy))

    @torch.no_grad()
    def compute(self, tokens: TokenBatch, *, micro_batch_size: int = 0) -> LogProbs:
        """``forward`` without gradient, in micro-batches, on the device of the input."""
        home = tokens.response_mask.device
        logprobs = torch.zeros(tokens.response_mask.shape, device=home)
        entropy = torch.zeros_like(logprobs)
        batches = list(self.micro_batches(tokens, micro_batch_size))
        missing = self.missing_passes(len(batches))
        progress = Progress(len(logprobs))
        for rows in batches:
            part = self.forward(self.take(tokens, rows))
            width = part.logprobs.shape[1]
            logprobs[rows, :width] = part.logprobs.to(home)
            entropy[rows, :width] = part.entropy.to(home)
            progress.advance(rows.stop - rows.start)
        for _ in range(missing):
            self.empty_pass()
        reshard(self._module)
        return LogProbs(logprobs, entropy)

    def empty_pass(self) -> Float[Tensor, ""]:
        """A pass that reaches every weight and changes nothing: a loss of 0."""
        return self.forward(one_token(self.device)).logprobs.sum() * 0.0


class _Scoring(nn.Module):
    """From tokens to log-probs in one module, so that hooks around its forward see every use of the weights."""

    def __init__(self, model: PreTrainedModel) -> None:
        super().__init__()
        self.model = model
        head = output_head(model)
        self._vocabulary = head.weight.shape[0]
        self._plain = _head_is_plain(model, head)

    def forward(self, tokens: TokenBatch, with_entropy_grad: bool) -> tuple[Tensor, Tensor]:
        """Log-probs and entropy of the trained tokens, [N] each."""
        mask = tokens.response_mask
        targets = tokens.input_ids[:, -mask.shape[1] :][mask] if mask.shape[1] else tokens.input_ids[:, :0].flatten()
        temperatures = tokens.temperatures[:, None].expand(mask.shape)[mask]
        predictors, head = self._predictors(tokens)

        def score(predictors: Tensor, targets: Tensor, temperatures: Tensor) -> tuple[Tensor, Tensor]:
            logits = head(predictors)
            return token_logprobs(logits, targets, temperatures, with_entropy_grad=with_entropy_grad)

        size = max(1, MAX_LOGITS // self._vocabulary)
        if len(targets) <= size:
            return score(predictors, targets, temperatures)
        parts = zip(predictors.split(size), targets.split(size), temperatures.split(size), strict=True)
        scored = [checkpoint(score, *part, use_reentrant=False) for part in parts]
        return torch.cat([logprobs for logprobs, _ in scored]), torch.cat([entropy for _, entropy in scored])

    def _predictors(self, tokens: TokenBatch) -> tuple[Tensor, Head]:
        """For each trained token what predicts it, and how logits come from that."""
        mask = tokens.response_mask
        inputs = {
            "input_ids": tokens.input_ids,
            "attention_mask": tokens.attention_mask.long(),
            "position_ids": tokens.position_ids,
            "use_cache": False,
        }
        width = mask.shape[1]
        if not self._plain:
            logits = self.model(**inputs, logits_to_keep=width + 1).logits[:, :-1]
            return logits[:, logits.shape[1] - width :][mask], _identity
        hidden = self.model.base_model(**inputs).last_hidden_state
        end = hidden.shape[1] - 1
        return hidden[:, end - width : end][mask], output_head(self.model)


def output_head(model: PreTrainedModel) -> nn.Linear:
    """The layer that turns hidden states into logits."""
    head = model.get_output_embeddings()
    if not isinstance(head, nn.Linear):
        raise TrainingError(f"{type(model).__name__} has no linear output embedding to take log-probs from")
    return head


def _identity(logits: Tensor) -> Tensor:
    return logits


@torch.no_grad()
def _head_is_plain(model: PreTrainedModel, head: nn.Linear) -> bool:
    """Whether logits are the output embedding of the last hidden state and nothing else.

    Asked of the model itself, since some families scale or cap their logits on the way.
    """
    ids = torch.arange(2, device=head.weight.device)[None]
    whole = model(input_ids=ids, use_cache=False).logits
    parts = head(model.base_model(input_ids=ids, use_cache=False).last_hidden_state)
    return whole.shape == parts.shape and torch.allclose(whole.float(), parts.float(), rtol=1e-3, atol=1e-3)
