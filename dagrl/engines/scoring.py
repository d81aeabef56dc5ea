"""Log-probs and entropy of response tokens under a causal language model, with or without gradient."""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from typing import TYPE_CHECKING, NamedTuple

import torch
from jaxtyping import Bool, Float, Float32, Int64
from torch import Tensor, nn
from torch.utils.checkpoint import checkpoint

from dagrl.data.metrics import Metric
from dagrl.engines.parallel import SINGLE, DataParallel
from dagrl.engines.passes import Passes, one_token
from dagrl.engines.projection import LogitReader, TopK
from dagrl.errors import NodeError, TrainingError
from dagrl.graph.roles import LogProbs, TokenBatch, TopLogProbs
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

    output_names = ("new_logprobs", "new_entropy")

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

    def outputs(
        self, tokens: TokenBatch, wanted: Collection[str], readers: Sequence[LogitReader] = ()
    ) -> tuple[dict[str, Float32[Tensor, "B T"]], list[Tensor]]:
        """``new_logprobs`` and ``new_entropy``; the latter has no gradient unless it is wanted."""
        scored, read = self.read(tokens, readers, with_entropy_grad="new_entropy" in wanted)
        return _by_name(scored), read

    def compute_outputs(self, tokens: TokenBatch, *, micro_batch_size: int) -> dict[str, Float32[Tensor, "B T"]]:
        """``outputs`` without gradient, in micro-batches, on the device of the input."""
        return _by_name(self.compute(tokens, micro_batch_size=micro_batch_size))

    def observed(self, outputs: Mapping[str, Tensor], mask: Bool[Tensor, "B T"]) -> dict[str, Metric]:
        """The policy's entropy."""
        return {"actor/entropy": mean_metric(outputs["new_entropy"].detach(), mask)}

    def forward(self, tokens: TokenBatch, *, with_entropy_grad: bool = False) -> LogProbs:
        """Log-probs and entropy, [B T] each, 0 where response_mask is False."""
        return self.read(tokens, (), with_entropy_grad=with_entropy_grad)[0]

    def read(
        self, tokens: TokenBatch, readers: Sequence[LogitReader], *, with_entropy_grad: bool = False
    ) -> tuple[LogProbs, list[Tensor]]:
        """``forward``, and [B T ...] of all that the readers give, 0 where response_mask is False."""
        with self._autocast():
            logprobs, entropy, *more = self._module(tokens, with_entropy_grad, readers)
        logprobs, entropy, *more = (_placed(value, tokens.response_mask) for value in (logprobs, entropy, *more))
        return LogProbs(logprobs, entropy), more

    @torch.no_grad()
    def compute(self, tokens: TokenBatch, *, micro_batch_size: int = 0) -> LogProbs:
        """``forward`` without gradient, in micro-batches, on the device of the input."""
        home = tokens.response_mask.device
        logprobs = torch.zeros(tokens.response_mask.shape, device=home)
        entropy = torch.zeros_like(logprobs)
        for rows, part, _ in self._all_passes(tokens, micro_batch_size, ()):
            width = part.logprobs.shape[1]
            logprobs[rows, :width] = part.logprobs.to(home)
            entropy[rows, :width] = part.entropy.to(home)
        return LogProbs(logprobs, entropy)

    @torch.no_grad()
    def compute_topk(self, tokens: TokenBatch, k: int, *, micro_batch_size: int = 0) -> TopLogProbs:
        """``compute``, and the ``k`` likeliest tokens at each place; logits exist a chunk at a time.

        Raises:
            NodeError: when the vocabulary has fewer than ``k`` tokens.
        """
        vocabulary = output_head(self.model).weight.shape[0]
        if k > vocabulary:
            raise NodeError(f"the {k} likeliest tokens are asked for, but the model's vocabulary has {vocabulary}")
        mask = tokens.response_mask
        logprobs = torch.zeros(mask.shape, device=mask.device)
        ids = torch.zeros((*mask.shape, k), dtype=torch.int64, device=mask.device)
        highest = torch.zeros(ids.shape, device=mask.device)
        for rows, part, (part_ids, part_highest) in self._all_passes(tokens, micro_batch_size, (TopK(k),)):
            width = part.logprobs.shape[1]
            logprobs[rows, :width] = part.logprobs.to(mask.device)
            ids[rows, :width] = part_ids.to(mask.device)
            highest[rows, :width] = part_highest.to(mask.device)
        return TopLogProbs(logprobs, ids, highest)

    def _all_passes(
        self, tokens: TokenBatch, micro_batch_size: int, readers: Sequence[LogitReader]
    ) -> Iterator[tuple[slice, LogProbs, list[Tensor]]]:
        """Every micro-batch and what its pass gives."""
        for rows in self.in_step(self.micro_batches(tokens, micro_batch_size), len(tokens.response_mask)):
            yield rows, *self.read(self.take(tokens, rows), readers)

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

    def forward(
        self, tokens: TokenBatch, with_entropy_grad: bool, readers: Sequence[LogitReader]
    ) -> tuple[Tensor, ...]:
        """Log-probs and entropy of the trained tokens, [N] each, and [N ...] of all that the readers give."""
        mask = tokens.response_mask
        targets = tokens.input_ids[:, -mask.shape[1] :][mask] if mask.shape[1] else tokens.input_ids[:, :0].flatten()
        temperatures = tokens.temperatures[:, None].expand(mask.shape)[mask]
        predictors, head = self._predictors(tokens)

        def score(predictors: Tensor, chunk: slice) -> tuple[Tensor, ...]:
            logits = head(predictors)
            scored = token_logprobs(logits, targets[chunk], temperatures[chunk], with_entropy_grad=with_entropy_grad)
            return (*scored, *_read(readers, logits, temperatures[chunk], scored, chunk))

        size = max(1, MAX_LOGITS // self._vocabulary)
        if len(targets) <= size and not readers:
            return score(predictors, slice(None))
        # At least one chunk: where there is no token, readers still say what they give.
        chunks = [slice(start, start + size) for start in range(0, max(1, len(targets)), size)]
        scored = [checkpoint(score, predictors[chunk], chunk, use_reentrant=False) for chunk in chunks]
        return tuple(torch.cat(parts) for parts in zip(*scored, strict=True))

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


def _by_name(scored: LogProbs) -> dict[str, Tensor]:
    return {"new_logprobs": scored.logprobs, "new_entropy": scored.entropy}


def _read(
    readers: Sequence[LogitReader], logits: Tensor, temperatures: Tensor, scored: tuple[Tensor, Tensor], chunk: slice
) -> Iterator[Tensor]:
    """What the readers give for a chunk: they compute in float32, at the rows' temperatures."""
    if not readers:
        return
    outputs = {"new_logprobs": scored[0].detach(), "new_entropy": scored[1].detach()}
    with torch.autocast(logits.device.type, enabled=False):
        scaled = logits.float() / temperatures.unsqueeze(1)
        for reader in readers:
            yield from reader(scaled, outputs, chunk)


def _placed(values: Tensor, mask: Tensor) -> Tensor:
    """[N ...] of the trained tokens as [B T ...], 0 elsewhere."""
    blank = values.new_zeros((*mask.shape, *values.shape[1:]))
    return blank.masked_scatter(mask.reshape(*mask.shape, *[1] * (values.ndim - 1)), values)


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
