"""Run the functions beside a loss on made-up rows, as the engine does on real ones."""

from __future__ import annotations

from collections.abc import Collection, Mapping
from dataclasses import replace
from typing import Any

import torch
from torch import Tensor

from dagrl.contracts.batch import Batch
from dagrl.contracts.make_batch import LOGITS
from dagrl.contracts.violation import Finding, RunFault, fault_of
from dagrl.engines.prepared import draw, run_prepare
from dagrl.engines.projection import Projection, of_tokens
from dagrl.errors import NodeError
from dagrl.graph.contract import LossContract, Read
from dagrl.graph.hooks import NEW_LOGPROBS
from dagrl.graph.parameters import TOKEN_UNIFORM

_FIX = "return what the annotation says"


def prepared_batch(
    contract: LossContract, batch: Batch, options: Mapping[str, Any], absent: Collection[str] = ()
) -> Batch:
    """The rows with what the loss's ``prepare=`` function gives of all of them, unless they have it already.

    Raises:
        RunFault: when it raises or breaks its declaration.
    """
    hook = contract.prepare
    if hook is None or _key(hook.gives[0]) in batch.columns:
        return batch
    by_seed = batch.seeds.argsort()
    read = {read.name: batch.tensor(read.name) for read in hook.reads if read.name not in absent}
    uniform = draw(batch.seeds, 0, batch.tensor("response_mask"))
    inputs = read | {NEW_LOGPROBS: batch.tensor(NEW_LOGPROBS).detach(), TOKEN_UNIFORM: uniform}
    ordered = {name: column[by_seed] for name, column in inputs.items()}
    try:
        with torch.no_grad():
            given = run_prepare(contract.name, hook, ordered, options, batch.widths, batch.num_rows)
    except NodeError as error:
        raise RunFault(Finding(str(error), _FIX)) from error
    except Exception as error:
        raise fault_of(error, contract) from error
    back = by_seed.argsort()
    columns = {_key(read): given[read.name][back] for read in hook.gives}
    types = {_key(read): read.type for read in hook.gives}
    return replace(batch, columns={**batch.columns, **columns}, types={**batch.types, **types})


def taken_of_prepared(contract: LossContract, batch: Batch) -> dict[str, Tensor]:
    """What the loss takes of what was prepared."""
    if contract.prepare is None:
        return {}
    return {read.name: batch.tensor(_key(read)) for read in contract.prepare.gives if read.name in contract.arguments}


def projected(
    contract: LossContract,
    batch: Batch,
    outputs: Mapping[str, Tensor],
    options: Mapping[str, Any],
    absent: Collection[str],
    chunk: int,
) -> dict[str, Tensor]:
    """What the loss's ``project=`` function gives of the logits among ``outputs``, ``chunk`` tokens at a time.

    Raises:
        RunFault: when it raises or breaks its declaration.
    """
    hook = contract.project
    if hook is None:
        return {}
    mask, logits = batch.tensor("response_mask"), outputs[LOGITS]
    tokens = logits[mask]
    columns = {r.name: of_tokens(batch.tensor(r.name), mask) for r in hook.reads if r.name not in absent}
    project = Projection(contract.name, hook, columns, {}, {name: options[name] for name in hook.options})
    size = chunk or max(1, len(tokens))
    places = [slice(start, start + size) for start in range(0, len(tokens), size)]
    try:
        values = torch.cat([project(tokens[place], {}, place)[0] for place in places])
    except NodeError as error:
        raise RunFault(Finding(str(error), _FIX)) from error
    except Exception as error:
        raise fault_of(error, contract) from error
    return {hook.name: values.new_zeros(mask.shape).masked_scatter(mask, values)}


def _key(read: Read) -> str:
    """A name that no column has: a loss may read a column and prepare another of its name."""
    return f"prepared {read.name}"
