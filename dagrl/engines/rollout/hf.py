"""Rollout by a Hugging Face model in this process: an own loop over its key-value cache.

A row depends on its prompt and seed alone: never on its batch mates, their order or the padding,
beyond the float noise of a matrix product.
"""

from __future__ import annotations

from collections.abc import Generator, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from itertools import count
from math import isfinite
from typing import TYPE_CHECKING, NamedTuple, cast

import torch
from jaxtyping import Bool, Float, Float32, Int64
from torch import Tensor
from transformers import DynamicCache

from dagrl.engines.rollout.base import (
    Response,
    StatefulRollout,
    check_finite,
    check_request,
    no_samples,
    not_finite,
    response_limits,
)
from dagrl.engines.rollout.stop_texts import StopTexts
from dagrl.engines.sampling import sample_tokens, token_uniforms
from dagrl.engines.weights import Weights, layout_of
from dagrl.graph.progress import Progress
from dagrl.graph.roles import Samples, Sampling

if TYPE_CHECKING:
    from transformers import PreTrainedModel, PreTrainedTokenizerBase

#: Finished rows leave the batch once they are this share of it: dropping them copies the rest of the cache.
COMPACT_SHARE = 0.25


class HFRollout(StatefulRollout):
    """Draws responses from ``model``, whose weights may change between calls; it is always awake on a CPU.

    ``context_length`` bounds prompt and response together; None is no bound. ``tokenizer`` is for texts that end a
    response; without one there can be none. ``version`` is that of the weights that the model has; None: its weights
    are yet to be loaded.
    """

    def __init__(
        self,
        model: PreTrainedModel,
        *,
        stop_token_ids: frozenset[int],
        pad_token_id: int,
        context_length: int | None,
        tokenizer: PreTrainedTokenizerBase | None = None,
        version: int | None = 0,
    ) -> None:
        super().__init__("hf")
        self._model = model
        self._stops = sorted(stop_token_ids)
        self._pad = pad_token_id
        self._context_length = context_length
        self._tokenizer = tokenizer
        self._state.version = version

    def generate(self, prompts: Sequence[Sequence[int]], seeds: Int64[Tensor, " B"], sampling: Sampling) -> Samples:
        """One response for each prompt; rows that share a prompt share its prefill.

        The tensors are on the device of ``seeds``; T is the longest response. Raises ConfigError for a prompt
        that is empty or leaves no room in the context, TrainingError where the model's logits are NaN.
        """
        limits = self._begin(prompts, seeds, sampling)
        if not prompts:
            return no_samples(seeds.device)
        with _evaluating(self._model):
            steps = list(self._decode(prompts, seeds.to(limits.device), limits, sampling))
        return _assemble(steps, limits, self._pad, seeds.device)

    def stream(
        self, prompts: Sequence[Sequence[int]], seeds: Int64[Tensor, " B"], sampling: Sampling
    ) -> Iterator[tuple[int, Response]]:
        """The rows of ``generate`` as they finish, each with its place among the prompts."""
        limits = self._begin(prompts, seeds, sampling)
        steps = self._decode(prompts, seeds.to(limits.device), limits, sampling) if prompts else iter(())
        return self._state.unchanged(self._streamed(steps, limits))

    def _streamed(self, steps: Iterator[_Step], limits: Int64[Tensor, " B"]) -> Generator[tuple[int, Response]]:
        drawn: dict[int, Response] = {row: Response([], [], True) for row in range(len(limits))}
        while True:
            with _evaluating(self._model):  # for this step alone: the caller goes on between them
                step = next(steps, None)
            if step is None:
                return
            yield from _finished(step, drawn, limits)

    def load_weights(self, weights: Weights, version: int) -> None:
        """Copy the weights into the model's own.

        Raises:
            EngineError: as the protocol says.
        """
        own: dict[str, Tensor] = self._model.state_dict(keep_vars=True)
        with self._state.taking(weights, layout_of(self._model), version) as arrivals, torch.no_grad():
            for name, tensor in arrivals:
                own[name].copy_(tensor)
                del tensor  # the next bucket may then have its memory
            arrivals.check_complete()

    def _begin(
        self, prompts: Sequence[Sequence[int]], seeds: Int64[Tensor, " B"], sampling: Sampling
    ) -> Int64[Tensor, " B"]:
        """The limits of the responses, on the model's device, if they can be drawn."""
        self._state.may_generate()
        check_request(prompts, seeds, sampling, self._context_length)
        return response_limits(prompts, sampling.max_new_tokens, self._context_length).to(self._model.device)

    def _prefill(self, prompts: Sequence[Sequence[int]]) -> _Batch:
        places: dict[tuple[int, ...], int] = {}
        index = [places.setdefault(tuple(prompt), len(places)) for prompt in prompts]
        input_ids, attention_mask = _left_pad(list(places), self._pad, self._model.device)
        position_ids = (attention_mask.cumsum(1) - 1).clamp(min=0)
        cache = DynamicCache(config=self._model.config)
        logits = self._forward(input_ids, attention_mask, position_ids, cache)
        batch = _Batch(cache, attention_mask, position_ids[:, -1:], logits)
        if len(places) < len(prompts):
            batch.select(torch.tensor(index, device=self._model.device))
        return batch

    def _decode(
        self,
        prompts: Sequence[Sequence[int]],
        seeds: Int64[Tensor, " B"],
        limits: Int64[Tensor, " B"],
        sampling: Sampling,
    ) -> Iterator[_Step]:
        """Sample and feed tokens until every row has met a stop or its limit."""
        texts = StopTexts(sampling.stop, prompts, self._tokenizer)
        batch = self._prefill(prompts)
        rows = torch.arange(len(seeds), device=limits.device)
        done = torch.zeros_like(rows, dtype=torch.bool)
        progress = Progress(int(limits.max()), "tokens of the longest response")
        for position in count():
            tokens, logprobs = sample_tokens(
                batch.logits,
                token_uniforms(seeds, position),
                sampling.temperature,
                top_p=sampling.top_p,
                top_k=sampling.top_k,
            )
            stopped = self._is_stop(tokens) | texts.end_with(rows, tokens, done)
            yield _Step(rows, tokens, logprobs, stopped)
            progress.advance()
            done |= stopped | (limits == position + 1)
            num_done = int(done.sum())
            if num_done == len(done):
                return
            if num_done >= COMPACT_SHARE * len(done):
                keep = (~done).nonzero()[:, 0]
                batch.select(keep)
                rows, seeds, limits, tokens, done = (x[keep] for x in (rows, seeds, limits, tokens, done))
            batch.advance(done)
            batch.logits = self._forward(tokens[:, None], batch.attention_mask, batch.position_ids, batch.cache)

    def _is_stop(self, tokens: Int64[Tensor, " K"]) -> Bool[Tensor, " K"]:
        found = torch.zeros_like(tokens, dtype=torch.bool)
        for stop in self._stops:
            found |= tokens == stop
        return found

    def _forward(
        self,
        input_ids: Int64[Tensor, "K Q"],
        attention_mask: Int64[Tensor, "K S"],
        position_ids: Int64[Tensor, "K Q"],
        cache: DynamicCache,
    ) -> Float[Tensor, "K V"]:
        """Logits after the last of ``input_ids``, which join the cache."""
        output = self._model(
            input_ids=input_ids,
            attention_mask=attention_mask,
            position_ids=position_ids,
            past_key_values=cache,
            use_cache=True,
            logits_to_keep=1,
        )
        return output.logits[:, -1]


@dataclass
class _Batch:
    """The K rows in the forward pass: what the model knows of them, and ``logits`` for their next token."""

    cache: DynamicCache
    attention_mask: Int64[Tensor, "K S"]
    position_ids: Int64[Tensor, "K 1"]
    logits: Float[Tensor, "K V"]

    def select(self, index: Int64[Tensor, " K"]) -> None:
        """Keep the rows of ``index``, repeated where it repeats them."""
        # An index_select under another name; unlike batch_select_indices every kind of layer has it.
        self.cache.reorder_cache(cast("torch.LongTensor", index))
        self.attention_mask = self.attention_mask.index_select(0, index)
        self.position_ids = self.position_ids.index_select(0, index)
        self.logits = self.logits.index_select(0, index)

    def advance(self, done: Bool[Tensor, " K"]) -> None:
        """Make room for one more token; finished rows stay where they are, inside the model's positions."""
        ones = self.attention_mask.new_ones(len(done), 1)
        self.attention_mask = torch.cat([self.attention_mask, ones], 1)
        self.position_ids = self.position_ids + ~done[:, None]


class _Step(NamedTuple):
    """What one pass drew; ``rows`` are the places of its K rows in the caller's order."""

    rows: Int64[Tensor, " K"]
    tokens: Int64[Tensor, " K"]
    logprobs: Float32[Tensor, " K"]
    stopped: Bool[Tensor, " K"]


def _left_pad(
    prompts: Sequence[tuple[int, ...]], pad: int, device: torch.device
) -> tuple[Int64[Tensor, "K P"], Int64[Tensor, "K P"]]:
    lengths = torch.tensor([len(prompt) for prompt in prompts])
    width = int(lengths.max())
    ids = torch.tensor([(pad,) * (width - len(prompt)) + prompt for prompt in prompts])
    mask = torch.arange(width) >= width - lengths[:, None]
    return ids.to(device), mask.long().to(device)


def _assemble(steps: Sequence[_Step], limits: Int64[Tensor, " B"], pad: int, device: torch.device) -> Samples:
    """Put the steps side by side; a row ends at its first stop token or its limit, whatever it drew after."""
    tokens, logprobs, stopped = _columns(steps, len(limits))
    lengths, truncated = _row_ends(stopped, limits)
    past = torch.arange(len(steps), device=limits.device)[:, None] >= lengths
    logprobs.masked_fill_(past, 0.0)
    check_finite(logprobs.T)
    columns = (tokens.masked_fill_(past, pad).T, lengths, logprobs.T, truncated)
    return Samples(*(column.contiguous().to(device) for column in columns))


def _columns(
    steps: Sequence[_Step], num_rows: int
) -> tuple[Int64[Tensor, "T B"], Float32[Tensor, "T B"], Bool[Tensor, "T B"]]:
    """Tokens, log-probs and stop marks of all steps; places that were not drawn hold 0."""
    index = torch.cat([step.rows + place * num_rows for place, step in enumerate(steps)])

    def spread(drawn: list[Tensor]) -> Tensor:
        values = torch.cat(drawn)
        column = torch.zeros(len(steps) * num_rows, dtype=values.dtype, device=values.device)
        return column.index_copy_(0, index, values).view(len(steps), num_rows)

    return (
        spread([step.tokens for step in steps]),
        spread([step.logprobs for step in steps]),
        spread([step.stopped for step in steps]),
    )


def _finished(step: _Step, drawn: dict[int, Response], limits: Int64[Tensor, " B"]) -> Iterator[tuple[int, Response]]:
    """Add a step to what was drawn; the rows that end with it leave."""
    columns = (step.rows, step.tokens, step.logprobs, step.stopped, limits[step.rows])
    for row, token, logprob, stopped, limit in zip(*(column.tolist() for column in columns), strict=True):
        if row not in drawn:  # it has ended and only stays in the batch
            continue
        if not isfinite(logprob):
            raise not_finite(row, len(drawn[row].tokens))
        drawn[row].tokens.append(token)
        drawn[row].logprobs.append(logprob)
        if stopped or len(drawn[row].tokens) == limit:
            yield row, drawn.pop(row)._replace(truncated=not stopped)


def _row_ends(
    stopped: Bool[Tensor, "T B"], limits: Int64[Tensor, " B"]
) -> tuple[Int64[Tensor, " B"], Bool[Tensor, " B"]]:
    """Each row's length, stop token included, and whether its limit came first."""
    first_stop = torch.where(stopped.any(0), stopped.int().argmax(0), len(stopped))
    return torch.minimum(first_stop + 1, limits), first_stop >= limits


@contextmanager
def _evaluating(model: PreTrainedModel) -> Generator[None]:
    """Dropout off and no autograd; the modules' modes are put back."""
    training = [module for module in model.modules() if module.training]
    model.eval()
    try:
        with torch.inference_mode():
            yield
    finally:
        for module in training:
            module.training = True
