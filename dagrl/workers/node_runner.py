"""Run one node on its inputs and hold the result against the contract."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from torch import Tensor

from dagrl.data.columns import DTYPES, ColumnType
from dagrl.data.join import Widths
from dagrl.data.metrics import Metrics
from dagrl.data.objects import object_array
from dagrl.errors import NodeError, counted, with_article
from dagrl.graph.contract import NodeContract
from dagrl.graph.pipeline import Call
from dagrl.graph.roles import Canary, LossColumns

Columns = dict[str, Tensor | np.ndarray]


@dataclass(frozen=True)
class NodeInputs:
    """What the executor hands to a node: aligned columns of equal widths, and what every edge carries."""

    columns: Columns
    widths: Widths
    group_ids: Tensor
    seeds: Tensor
    positions: Tensor | None
    wanted: frozenset[str]
    aliases: Mapping[str, str]
    step: int
    state: Any
    canary: Canary | None = None

    @property
    def num_rows(self) -> int:
        """Rows of every column."""
        return len(self.group_ids)


@dataclass(frozen=True)
class NodeOutput:
    """Checked columns, or a filter's flags; metrics; the new state; the widths of the columns."""

    columns: Columns
    flags: Tensor | None
    metrics: Metrics
    state: Any
    widths: Widths


def run_node(call: Call, inputs: NodeInputs, worker: Any) -> NodeOutput:
    """Call the node's function and check what it returns and what it did to its inputs.

    Raises:
        NodeError: naming the call, when the result breaks the contract or an input was edited.
    """
    versions = {name: column._version for name, column in inputs.columns.items() if isinstance(column, Tensor)}
    returned = call.node.function(**_arguments(call, inputs, worker))
    for name, version in versions.items():
        column = inputs.columns[name]
        if isinstance(column, Tensor) and column._version != version:
            raise NodeError(f"`{call.name}` edited its input `{name}` in place: work on a copy (`{name}.clone()`)")
    return _checked(call, inputs, returned)


def _arguments(call: Call, inputs: NodeInputs, worker: Any) -> dict[str, Any]:
    contract = call.contract
    arguments: dict[str, Any] = {read.name: inputs.columns.get(read.name) for read in contract.reads}
    carried = {"group_ids": inputs.group_ids, "seeds": inputs.seeds}
    arguments |= {name: carried[name] for name in contract.carried}
    arguments |= call.options
    if contract.role is not None:
        arguments[contract.role.parameter] = worker
    if contract.positions is not None:
        arguments[contract.positions] = inputs.positions
    if contract.loss_columns is not None:
        names = {read.name for terms in call.loss_terms for read in terms.reads()}
        tensors = {name: inputs.columns[name] for name in names if name in inputs.columns}
        arguments[contract.loss_columns] = LossColumns({n: c for n, c in tensors.items() if isinstance(c, Tensor)})
    if contract.state is not None:
        arguments["state"] = inputs.state
    filled = {"wanted": inputs.wanted, "aliases": inputs.aliases, "step": inputs.step, "canary": inputs.canary}
    return arguments | {name: filled[name] for name in contract.executor_keywords}


def _checked(call: Call, inputs: NodeInputs, returned: Any) -> NodeOutput:
    contract = call.contract
    columns, state, metrics = _parts(call, returned)
    if contract.rows == "filter":
        flags = _column(call, "its flags", ColumnType("bool", ("B",)), columns, inputs.num_rows)
        return NodeOutput({}, flags if isinstance(flags, Tensor) else None, metrics, state, inputs.widths)
    written = _named(call, contract, columns, inputs.wanted)
    checked: Columns = {}
    for write in contract.writes:
        if write.name in written:
            checked[write.name] = _column(call, f"`{write.name}`", write.type, written[write.name], inputs.num_rows)
    return NodeOutput(checked, None, metrics, state, _widths(call, inputs, checked))


def _parts(call: Call, returned: Any) -> tuple[Any, Any, Metrics]:
    """Columns, state and metrics of a return value, None where the contract has no such part."""
    layout = call.contract.result
    parts = list(returned) if layout.num_parts > 1 and isinstance(returned, tuple) else [returned]
    if layout.num_parts == 0:
        parts = []
    if len(parts) != layout.num_parts:
        raise NodeError(f"`{call.name}` returned {len(parts)} values, its annotation says {layout.num_parts}")
    columns = parts.pop(0) if layout.columns is not None else None
    state = parts.pop(0) if layout.state else None
    metrics = parts.pop(0) if layout.metrics else Metrics()
    if isinstance(call.contract.state, type) and not isinstance(state, call.contract.state):
        expected = call.contract.state.__name__
        raise NodeError(f"`{call.name}` returned {_kind(state)} as its new state, its annotation says {expected}")
    if not isinstance(metrics, Metrics):
        raise NodeError(f"`{call.name}` returned {_kind(metrics)} where its annotation says Metrics")
    return columns, state, metrics


def _named(call: Call, contract: NodeContract, columns: Any, wanted: frozenset[str]) -> dict[str, Any]:
    if contract.result.columns is None:
        return {}
    if contract.result.columns == "one":
        return {contract.writes[0].name: columns}
    if not isinstance(columns, contract.result.columns):
        expected = contract.result.columns.__name__
        raise NodeError(f"`{call.name}` returned {_kind(columns)}, its annotation says {expected}")
    named = {write.name: getattr(columns, write.name) for write in contract.writes}
    for write in contract.writes:
        if named[write.name] is None and (not write.optional or write.name in wanted):
            raise NodeError(f"`{call.name}` returned None for `{write.name}`, which a later node reads")
    return {name: column for name, column in named.items() if column is not None}


def _column(call: Call, what: str, declared: ColumnType, value: Any, num_rows: int) -> Tensor | np.ndarray:
    if declared.is_object:
        array = _object_column(call, what, value)
        if len(array) != num_rows:
            raise NodeError(f"`{call.name}` returned {counted(len(array), 'row')} for {what}, it was given {num_rows}")
        return array
    if not isinstance(value, Tensor):
        raise NodeError(f"`{call.name}` returned {_kind(value)} for {what}, declared {declared}")
    dtype = getattr(torch, DTYPES[declared.dtype])
    if value.dtype != dtype or value.ndim != len(declared.dims):
        found = f"{str(value.dtype).removeprefix('torch.')}{list(value.shape)}"
        raise NodeError(f"`{call.name}` returned {found} for {what}, declared {declared}")
    if len(value) != num_rows:
        raise NodeError(f"`{call.name}` returned {counted(len(value), 'row')} for {what}, it was given {num_rows}")
    return value.detach()


def _object_column(call: Call, what: str, value: Any) -> np.ndarray:
    if isinstance(value, np.ndarray) and value.dtype == object and value.ndim == 1:
        return value
    if not isinstance(value, Sequence | np.ndarray) or isinstance(value, str | bytes):
        raise NodeError(f"`{call.name}` returned {_kind(value)} for {what}: give a list, one value for each row")
    return object_array(value)


def _widths(call: Call, inputs: NodeInputs, columns: Columns) -> Widths:
    """P and T of what was written: those of the inputs, or new ones from a node that reads none.

    A sequence-wide column alone says only P + T; the prompt width is then what is left of the response width.
    """
    sizes: dict[str, int] = {}
    types = {write.name: write.type for write in call.contract.writes}
    for name, column in columns.items():
        for dim, size in zip(types[name].dims, column.shape, strict=False):
            if dim in ("P", "T", "S") and sizes.setdefault(dim, size) != size:
                raise NodeError(f"`{call.name}` returned `{name}` {size} wide in {dim}, another column {sizes[dim]}")
    read_dims = {dim for read in call.reads() if read.name in inputs.columns for dim in read.type.dims}
    fixed_p = inputs.widths.P if read_dims & {"P", "S"} else None
    fixed_t = inputs.widths.T if read_dims & {"T", "S"} else None
    width_t = sizes.get("T", fixed_t if fixed_t is not None else 0)
    left = sizes["S"] - width_t if "S" in sizes else (fixed_p if fixed_p is not None else 0)
    width_p = sizes.get("P", left)
    expected = {"P": fixed_p, "T": fixed_t, "S": None if fixed_p is None or fixed_t is None else inputs.widths.S}
    for dim, size in sizes.items():
        if expected[dim] is not None and size != expected[dim]:
            raise NodeError(f"`{call.name}` returned columns {size} wide in {dim}, its inputs are {expected[dim]} wide")
    if "S" in sizes and sizes["S"] != width_p + width_t:
        raise NodeError(f"`{call.name}` returned S={sizes['S']}, which is not P={width_p} + T={width_t}")
    return Widths(width_p, width_t)


def _kind(value: Any) -> str:
    return with_article(type(value).__name__)
