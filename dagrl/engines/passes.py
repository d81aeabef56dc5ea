"""Forward passes over token batches: micro-batches by a token budget, cut to what they hold, in step over ranks.

What a pass computes is a matter of the engine: log-probs in `scoring`, values in `value_scoring`.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Collection, Iterator, Mapping, Sequence
from typing import TYPE_CHECKING, ClassVar, NamedTuple

import torch
from jaxtyping import Bool, Float, Float32
from torch import Tensor, nn

from dagrl.data.metrics import Metric
from dagrl.engines.parallel import SINGLE, DataParallel
from dagrl.engines.projection import LogitReader
from dagrl.engines.sharding import shard
from dagrl.graph.roles import TokenBatch
from dagrl.graph.specs import Precision

if TYPE_CHECKING:
    from transformers import PreTrainedModel


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


class Passes(ABC):
    """Runs ``module`` over token batches; the model stays in eval mode unless told to use dropout.

    ``precision="bf16"`` computes under autocast over the model's own weights. Where ranks share the weights out,
    every rank must run the same number of passes.
    """

    #: The names in ``outputs``.
    output_names: ClassVar[tuple[str, ...]]

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

    def missing_passes(self, own: int) -> int:
        """How many passes this rank lacks to as many as the rank with most; asked before any of them."""
        return self.parallel.max(own) - own if self.parallel.sharded else 0

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


def decoder_layers(model: PreTrainedModel) -> list[nn.Module]:
    """The layers that repeat: those that the model's family never splits over devices."""
    kinds = set(model._no_split_modules or ())  # pyright: ignore[reportPrivateUsage] - the only place that says it
    lists = [module for module in as_module(model).modules() if isinstance(module, nn.ModuleList)]
    return [layer for layers in lists for layer in layers if type(layer).__name__ in kinds]


def one_token(device: torch.device) -> TokenBatch:
    """The smallest batch that reaches every weight."""
    return TokenBatch(
        input_ids=torch.zeros(1, 2, dtype=torch.int64, device=device),
        attention_mask=torch.ones(1, 2, dtype=torch.bool, device=device),
        position_ids=torch.arange(2, device=device)[None],
        response_mask=torch.ones(1, 1, dtype=torch.bool, device=device),
        temperatures=torch.ones(1, device=device),
    )


def as_module(model: PreTrainedModel) -> nn.Module:
    """The model as torch types it: transformers' own annotations hide its arguments."""
    return model
