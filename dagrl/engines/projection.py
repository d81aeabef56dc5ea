"""Numbers read off logits while they exist, chunk by chunk: ``project=`` functions of losses, a teacher's top-k."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Protocol

import torch
from jaxtyping import Bool, Float32
from torch import Tensor

from dagrl.errors import NodeError, with_article
from dagrl.graph.contract import Hook
from dagrl.graph.hooks import NEW_LOGITS
from dagrl.graph.losses import LossTerm


class LogitReader(Protocol):
    """Reads one chunk of trained tokens."""

    def __call__(
        self, logits: Float32[Tensor, "n V"], outputs: Mapping[str, Tensor], tokens: slice
    ) -> tuple[Tensor, ...]:
        """Tensors [n ...] from logits at the rows' temperatures.

        ``outputs`` are the chunk's engine outputs, detached; ``tokens`` is its place among all trained tokens.
        """
        ...


@dataclass(frozen=True)
class Projection:
    """A ``project=`` function and what it reads: columns [N ...] of the trained tokens of a micro-batch."""

    owner: str
    hook: Hook
    columns: Mapping[str, Tensor]
    aliases: Mapping[str, str]
    options: Mapping[str, object]

    def __call__(
        self, logits: Float32[Tensor, "n V"], outputs: Mapping[str, Tensor], tokens: slice
    ) -> tuple[Float32[Tensor, " n"]]:
        """One number for each token of the chunk.

        Raises:
            NodeError: when the function returns something else.
        """
        given = {name: column[tokens] for name, column in self.columns.items()}
        aliased = {name: outputs[output] for name, output in self.aliases.items()}
        returned = self.hook.function(**{NEW_LOGITS: logits}, **given, **aliased, **self.options)
        what = f"project `{self.hook.name}` of loss `{self.owner}` returned"
        if not isinstance(returned, Tensor):
            raise NodeError(f"{what} {with_article(type(returned).__name__)}, its annotation says f32[N]")
        if returned.dtype != torch.float32 or returned.shape != logits.shape[:1]:
            found = f"{str(returned.dtype).removeprefix('torch.')}{list(returned.shape)}"
            raise NodeError(f"{what} {found}: one float32 for each of {len(logits)} tokens is declared")
        return (returned,)


def projections(
    terms: Sequence[LossTerm], columns: Mapping[str, Tensor], aliases: Mapping[str, str], mask: Bool[Tensor, "B T"]
) -> dict[int, Projection]:
    """The ``project=`` functions of the terms by number, over the trained tokens of a micro-batch."""
    found: dict[int, Projection] = {}
    for number, term in enumerate(terms):
        hook = term.contract.project
        if hook is not None:
            values = term.option_values()
            found[number] = Projection(
                owner=term.contract.name,
                hook=hook,
                columns={r.name: of_tokens(columns[r.name], mask) for r in hook.reads if r.name in columns},
                aliases={read.name: aliases[read.name] for read in hook.reads if read.name in aliases},
                options={name: values[name] for name in hook.options},
            )
    return found


def of_tokens(column: Tensor, mask: Bool[Tensor, "B T"]) -> Tensor:
    """A column [B] or [B T ...] as [N ...], one entry for each trained token."""
    return (column.unsqueeze(1).expand(mask.shape) if column.ndim == 1 else column)[mask]


class SumPiSquared:
    """Reads the sum of squared probabilities over the vocabulary."""

    def __call__(
        self, logits: Float32[Tensor, "n V"], outputs: Mapping[str, Tensor], tokens: slice
    ) -> tuple[Float32[Tensor, " n"]]:
        """Between 1 / V, where all tokens are alike, and 1, where one is certain."""
        return (((2 * logits).logsumexp(1) - 2 * logits.logsumexp(1)).exp(),)


@dataclass(frozen=True)
class TopK:
    """Reads the ids and log-probs of the ``k`` likeliest tokens, likeliest first."""

    k: int

    def __call__(
        self, logits: Float32[Tensor, "n V"], outputs: Mapping[str, Tensor], tokens: slice
    ) -> tuple[Tensor, ...]:
        """Ids [n K] and log-probs [n K]."""
        highest, ids = logits.topk(self.k, dim=1)
        return ids, highest - logits.logsumexp(1, keepdim=True)
