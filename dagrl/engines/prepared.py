"""What losses compute over a mini-batch before its first backward pass: their ``prepare=`` functions."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass

import torch
from jaxtyping import Float32, Int64
from torch import Tensor

from dagrl.data.columns import DTYPES, ColumnType
from dagrl.data.join import Widths
from dagrl.engines.all_rows import AllRows
from dagrl.engines.parallel import DataParallel
from dagrl.errors import NodeError, with_article
from dagrl.graph.contract import Hook, Read
from dagrl.graph.hooks import NEW_LOGPROBS, reads_forward
from dagrl.graph.losses import LossTerm
from dagrl.graph.parameters import TOKEN_TYPE, TOKEN_UNIFORM
from dagrl.graph.roles import TokenBatch
from dagrl.ops.random import key_of, uniforms

#: What the loss terms read by name, for each term by its number.
Prepared = Mapping[int, Mapping[str, Tensor]]


@dataclass(frozen=True)
class MiniBatch:
    """This rank's rows of a mini-batch; ``number`` counts the update's optimizer steps and tells their draws apart.

    ``outputs`` are the engine's of a forward pass over them, by name, None where no function needs one.
    """

    tokens: TokenBatch
    columns: Mapping[str, Tensor]
    seeds: Int64[Tensor, " B"]
    number: int
    outputs: Mapping[str, Tensor] | None
    aliases: Mapping[str, str]

    def column(self, read: Read) -> Tensor | None:
        """A column by name: one that an engine output stands in for, one of the rows, or None."""
        if read.name in self.aliases and self.outputs is not None:
            return self.outputs[self.aliases[read.name]]
        return self.columns.get(read.name)


def prepare_hooks(terms: Sequence[LossTerm]) -> Iterator[tuple[int, LossTerm, Hook]]:
    """The terms that have a ``prepare=`` function, with their numbers."""
    for number, term in enumerate(terms):
        if term.contract.prepare is not None:
            yield number, term, term.contract.prepare


def needs_forward(terms: Sequence[LossTerm], aliases: Mapping[str, str]) -> bool:
    """Whether a function needs the policy's log-probs, or a column that an engine output stands in for."""
    return any(reads_forward(hook, aliases) for _, _, hook in prepare_hooks(terms))


@torch.no_grad()
def prepare_terms(
    terms: Sequence[LossTerm], batch: MiniBatch, parallel: DataParallel, device: torch.device
) -> Prepared:
    """Run every ``prepare=`` function on the rows of all ranks; what it gives for this rank's rows.

    All ranks must call, in step. Each computes the same, on ``device``.

    Raises:
        NodeError: when a function returns something else than its annotation says.
    """
    mask = batch.tokens.response_mask
    widths = Widths(batch.tokens.input_ids.shape[1] - mask.shape[1], mask.shape[1])
    rows = AllRows.of(batch.seeds, mask, widths, parallel)
    inputs = _inputs(terms, batch, rows, device)
    prepared: dict[int, dict[str, Tensor]] = {}
    for number, term, hook in prepare_hooks(terms):
        wide = run_prepare(term.contract.name, hook, inputs, term.option_values(), rows.want, len(rows.order))
        types = {read.name: read.type for read in hook.gives}
        prepared[number] = {n: rows.take_own(v, types[n].dims).to(mask.device) for n, v in wide.items()}
    return prepared


def run_prepare(
    owner: str, hook: Hook, inputs: Mapping[str, Tensor], options: Mapping[str, object], widths: Widths, num_rows: int
) -> dict[str, Tensor]:
    """Call a ``prepare=`` function with what it reads of ``inputs``; what it returns, by name.

    Raises:
        NodeError: when it returns something else than its annotation says.
    """
    names = [*hook.engine_inputs, *(read.name for read in hook.reads if read.name in inputs)]
    given = {name: inputs[name].clone() for name in names}
    returned = hook.function(**given, **{name: options[name] for name in hook.options})
    what = f"prepare `{hook.name}` of loss `{owner}`"
    if hook.result is None or not isinstance(returned, hook.result) or not isinstance(returned, tuple):
        kind = with_article(type(returned).__name__)
        raise NodeError(f"{what} returned {kind}, its annotation says {hook.result.__name__ if hook.result else None}")
    fields = {read.name: value for read, value in zip(hook.gives, returned, strict=True)}
    sizes = {"B": num_rows, "P": widths.P, "T": widths.T, "S": widths.S}
    for read in hook.gives:
        _check_field(what, read, fields[read.name], sizes)
    return fields


def _check_field(what: str, read: Read, value: object, sizes: Mapping[str, int]) -> None:
    if not isinstance(value, Tensor):
        raise NodeError(f"{what} returned {with_article(type(value).__name__)} for `{read.name}`, declared {read.type}")
    wanted = [sizes.get(dim) for dim in read.type.dims]
    fits = len(value.shape) == len(wanted) and all(w in (None, n) for w, n in zip(wanted, value.shape, strict=True))
    if not fits or value.dtype != getattr(torch, DTYPES[read.type.dtype]):
        found = f"{str(value.dtype).removeprefix('torch.')}{list(value.shape)}"
        raise NodeError(f"{what} returned {found} for `{read.name}`, declared {read.type} of {sizes['B']} rows")


def _inputs(terms: Sequence[LossTerm], batch: MiniBatch, rows: AllRows, device: torch.device) -> dict[str, Tensor]:
    """All that the functions read, of all rows."""
    reads = {read.name: read for _, _, hook in prepare_hooks(terms) for read in hook.reads}
    mask = rows.gather("response_mask", batch.tokens.response_mask, ColumnType("bool", ("B", "T"))).to(device)
    inputs: dict[str, Tensor] = {}
    for name, read in sorted(reads.items()):
        column = batch.column(read)
        if column is not None:
            inputs[name] = hide_untrained(rows.gather(name, column, read.type).to(device), read.type, mask)
    if batch.outputs is not None:
        inputs[NEW_LOGPROBS] = rows.gather(NEW_LOGPROBS, batch.outputs[NEW_LOGPROBS], TOKEN_TYPE).to(device)
    inputs[TOKEN_UNIFORM] = draw(rows.gather("seeds", batch.seeds, ColumnType("i64", ("B",))), batch.number, mask)
    return inputs


def draw(seeds: Int64[Tensor, " B"], number: int, mask: Tensor) -> Float32[Tensor, "B T"]:
    """Uniform numbers in [0, 1) for every place of the rows, in the ``number``-th optimizer step of an update."""
    return uniforms(key_of(TOKEN_UNIFORM, number), seeds.to(mask.device), mask.shape[1])


def hide_untrained(column: Tensor, kind: ColumnType, mask: Tensor) -> Tensor:
    """A float column over the response with 0 where nothing is trained, so that NaN there reaches no loss."""
    if kind.dims[:2] != ("B", "T") or not column.is_floating_point():
        return column
    return column.masked_fill(~mask.reshape(*mask.shape, *[1] * (column.ndim - 2)), 0)
