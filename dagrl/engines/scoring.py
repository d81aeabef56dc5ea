"""Log-probs and entropy of response tokens under a causal language model, with or without gradient."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import TYPE_CHECKING, NamedTuple

import torch
from jaxtyping import Float, Float32, Int64
from torch import Tensor, nn
from torch.utils.checkpoint import checkpoint

from dagrl.errors import TrainingError
from dagrl.graph.roles import LogProbs, TokenBatch
from dagrl.graph.specs import Precision
from dagrl.ops.logprobs import token_logprobs

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


class Cut(NamedTuple):
    """The places of a batch that are kept: prompt places ``first`` to ``prompt``, and ``response`` response places."""

    first: int
    prompt: int
    response: int

    def apply(self, column: Tensor, dims: tuple[str, ...]) -> Tensor:
        """A column [B, *dims], cut in P, T and S; other dims stay."""
        kept = {
            "P": slice(self.first, self.prompt),
            "T": slice(0, self.response),
            "S": slice(self.first, self.prompt + self.response),
        }
        return column[(slice(None), *(kept.get(dim, slice(None)) for dim in dims))]


class Scorer:
    """Scores token batches; the model stays in eval mode unless told to use dropout.

    ``precision="bf16"`` computes under autocast over the model's own weights.
    """

    def __init__(self, model: PreTrainedModel, *, precision: Precision, micro_batch_tokens: int) -> None:
        self.model = model.eval()
        self.device = next(model.parameters()).device
        self.micro_batch_tokens = micro_batch_tokens
        self._bf16 = precision == "bf16"
        head = output_head(model)
        self._vocabulary = head.weight.shape[0]
        self._head = head if _head_is_plain(model, head) else None

    def forward(self, tokens: TokenBatch, *, with_entropy_grad: bool = False) -> LogProbs:
        """Log-probs and entropy, [B T] each, 0 where response_mask is False."""
        mask = tokens.response_mask
        with torch.autocast(self.device.type, torch.bfloat16, enabled=self._bf16):
            logprobs, entropy = self._score(tokens, with_entropy_grad)
        blank = logprobs.new_zeros(mask.shape)
        return LogProbs(blank.masked_scatter(mask, logprobs), blank.masked_scatter(mask, entropy))

    @torch.no_grad()
    def compute(self, tokens: TokenBatch, *, micro_batch_size: int = 0) -> LogProbs:
        """``forward`` without gradient, in micro-batches, on the device of the input."""
        home = tokens.response_mask.device
        logprobs = torch.zeros(tokens.response_mask.shape, device=home)
        entropy = torch.zeros_like(logprobs)
        for rows in self.micro_batches(tokens, micro_batch_size):
            part = self.forward(self.take(tokens, rows))
            width = part.logprobs.shape[1]
            logprobs[rows, :width] = part.logprobs.to(home)
            entropy[rows, :width] = part.entropy.to(home)
        return LogProbs(logprobs, entropy)

    def micro_batches(self, tokens: TokenBatch, micro_batch_size: int) -> Iterator[slice]:
        """Consecutive rows: ``micro_batch_size`` of them, or as many as the token budget holds if 0."""
        num_rows, width = tokens.input_ids.shape
        size = micro_batch_size or max(1, self.micro_batch_tokens // max(1, width))
        return (slice(start, min(start + size, num_rows)) for start in range(0, num_rows, size))

    def take(self, tokens: TokenBatch, rows: slice) -> TokenBatch:
        """The rows, on the model's device, without columns in which none of them has a token."""
        return self.cut(tokens, rows)[0]

    def cut(self, tokens: TokenBatch, rows: slice) -> tuple[TokenBatch, Cut]:
        """``take``, and what was cut off, so that other columns of the rows can follow."""
        part = TokenBatch(*(column[rows].to(self.device) for column in tokens))
        width = part.response_mask.shape[1]
        used = part.attention_mask.any(0)
        prompt, response = used[: used.numel() - width], used[used.numel() - width :]
        first = int(prompt.int().argmax())
        last = int(response.nonzero()[-1]) + 1 if bool(response.any()) else 0
        cut = Cut(first, prompt.numel(), last)
        if first == 0 and last == width:
            return part, cut
        return (
            TokenBatch(
                cut.apply(part.input_ids, ("S",)),
                cut.apply(part.attention_mask, ("S",)),
                cut.apply(part.position_ids, ("S",)),
                cut.apply(part.response_mask, ("T",)),
                part.temperatures,
            ),
            cut,
        )

    def _score(self, tokens: TokenBatch, with_entropy_grad: bool) -> tuple[Tensor, Tensor]:
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
        if self._head is None:
            logits = self.model(**inputs, logits_to_keep=width + 1).logits[:, :-1]
            return logits[:, logits.shape[1] - width :][mask], _identity
        hidden = self.model.base_model(**inputs).last_hidden_state
        end = hidden.shape[1] - 1
        return hidden[:, end - width : end][mask], self._head


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
