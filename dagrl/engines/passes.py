"""Forward passes over token batches: micro-batches by a token budget, cut to what they hold, in step over ranks.

What a pass computes is a matter of the engine: log-probs in `scoring`, values in `value_scoring`.
"""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Collection, Iterator, Mapping, Sequence
from typing import ClassVar, NamedTuple

import torch
from jaxtyping import Bool, Float, Float32
from torch import Tensor

from dagrl.data.metrics import Metric
from dagrl.engines.model_tokens import context_length
from dagrl.engines.module_passes import ModulePasses
from dagrl.engines.projection import LogitReader
from dagrl.errors import NodeError
from dagrl.graph.roles import TokenBatch


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


class Passes(ModulePasses):
    """Runs ``module`` over token batches; the model stays in eval mode unless told to use dropout."""

    #: The names in ``outputs``.
    output_names: ClassVar[tuple[str, ...]]

    @abstractmethod
    def outputs(
        self, tokens: TokenBatch, wanted: Collection[str], readers: Sequence[LogitReader] = ()
    ) -> tuple[dict[str, Float32[Tensor, "B T"]], list[Tensor]]:
        """What a loss may read of a forward pass, by name, and [B T ...] of all that readers of its logits give.

        Those that are ``wanted`` carry a gradient.
        """

    @abstractmethod
    def compute_outputs(self, tokens: TokenBatch, *, micro_batch_size: int) -> dict[str, Float32[Tensor, "B T"]]:
        """``outputs`` without gradient, in micro-batches, on the device of the input."""

    @abstractmethod
    def observed(self, outputs: Mapping[str, Tensor], mask: Bool[Tensor, "B T"]) -> dict[str, Metric]:
        """What every update reports of its forward passes, whatever the loss is."""

    @abstractmethod
    def empty_pass(self) -> Float[Tensor, ""]:
        """A pass that reaches every weight and changes nothing: a loss of 0."""

    def micro_batches(self, tokens: TokenBatch, micro_batch_size: int) -> Iterator[slice]:
        """Consecutive rows: ``micro_batch_size`` of them, or as many as the token budget holds if 0."""
        num_rows, width = tokens.input_ids.shape
        size = micro_batch_size or max(1, self.micro_batch_tokens // max(1, width))
        return (slice(start, min(start + size, num_rows)) for start in range(0, num_rows, size))

    def take(self, tokens: TokenBatch, rows: slice) -> TokenBatch:
        """The rows, on the model's device, without columns in which none of them has a token."""
        return self.cut(tokens, rows)[0]

    def cut(self, tokens: TokenBatch, rows: slice) -> tuple[TokenBatch, Cut]:
        """``take``, and what was cut off, so that other columns of the rows can follow.

        Raises:
            NodeError: for a row of more tokens than the model has positions for.
        """
        part = TokenBatch(*(column[rows].to(self.device) for column in tokens))
        width = part.response_mask.shape[1]
        used = part.attention_mask.any(0)
        prompt, response = used[: used.numel() - width], used[used.numel() - width :]
        first = int(prompt.int().argmax())
        last = int(response.nonzero()[-1]) + 1 if bool(response.any()) else 0
        cut = Cut(first, prompt.numel(), last)
        self._check_context(part.attention_mask, prompt.numel() + last - first)
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

    def _check_context(self, mask: Bool[Tensor, "B S"], width: int) -> None:
        """Rows are padded: only where their width is beyond the context are tokens counted."""
        limit = context_length(self.model)
        if limit is not None and width > limit and (longest := int(mask.sum(1).max())) > limit:
            what = f"a row has {longest} tokens, and `{self.model.config.name_or_path}` has positions for {limit}"
            raise NodeError(f"{what}: shorten prompts or responses, or take a model with a longer context")


def one_token(device: torch.device) -> TokenBatch:
    """The smallest batch that reaches every weight."""
    return TokenBatch(
        input_ids=torch.zeros(1, 2, dtype=torch.int64, device=device),
        attention_mask=torch.ones(1, 2, dtype=torch.bool, device=device),
        position_ids=torch.arange(2, device=device)[None],
        response_mask=torch.ones(1, 1, dtype=torch.bool, device=device),
        temperatures=torch.ones(1, device=device),
    )
