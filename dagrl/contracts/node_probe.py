"""Run a node as the executor does, on copies of made-up rows, and see what it did to them."""

from __future__ import annotations

from collections.abc import Collection, Mapping
from dataclasses import replace
from typing import Any

from torch import Tensor

from dagrl.contracts.batch import Batch
from dagrl.contracts.options import accepts, call_of, option_values
from dagrl.contracts.outcome import Outcome, real_rows
from dagrl.contracts.probe import Probe, global_noise, require_untouched
from dagrl.contracts.violation import RunFault, fault_of
from dagrl.contracts.worker import role_worker
from dagrl.data.columns import ColumnType
from dagrl.data.join import Widths
from dagrl.data.metrics import merge_all
from dagrl.graph.contract import NodeContract
from dagrl.graph.node import Node
from dagrl.workers.node_runner import NodeInputs, NodeOutput, run_node

FLAGS = "its flags"
_COPY = "work on a copy: `x.clone()` of a tensor, `copy.deepcopy(x)` of an object"


class NodeProbe(Probe[NodeContract]):
    """A node with options, and the rows it is tried on, which lack the optional columns in ``without``.

    Raises:
        RunFault: when no value is known for an option, or the node's own check refuses the values.
    """

    def __init__(self, node: Node[..., Any], given: Mapping[str, Any], without: frozenset[str] = frozenset()) -> None:
        options = option_values(node.contract, given)
        call = call_of(node.contract, node, options, without)
        reads = [read for read in call.reads() if read.name not in without]
        super().__init__(node.contract, node.function, given=given, options=options, call=call, reads=reads)
        self.node, self.without = node, without

    def allows_without(self, absent: Collection[str]) -> bool:
        """Whether its check takes a call that lacks these optional columns, too."""
        return accepts(self.contract, self.node, self.options, {*self.without, *absent})

    @property
    def wide(self) -> frozenset[str]:
        """The columns it reads that have a width."""
        return frozenset(read.name for read in self.reads if {"P", "T", "S"} & set(read.type.dims))

    def run(
        self, batch: Batch, *, absent: Collection[str] = (), noise: int = 0, wanted: frozenset[str] | None = None
    ) -> Outcome:
        """One run as the executor would make it, which computes the columns in ``wanted`` (None: all).

        Raises:
            RunFault: when it raises, breaks its declaration or edits its input.
        """
        given = batch.copied()
        names = [read.name for read in self.reads if read.name not in absent]
        inputs = NodeInputs(
            columns={name: given.columns[name] for name in names},
            widths=given.widths if self.wide - set(absent) else Widths(0, 0),
            group_ids=given.group_ids,
            seeds=given.seeds,
            positions=given.positions if self.contract.positions else None,
            wanted=frozenset(write.name for write in self.contract.writes) if wanted is None else wanted,
            aliases={},
            step=1,
            state=self.call.state,
        )
        with global_noise(noise):
            try:
                output = run_node(self.call, inputs, role_worker(self.contract))
            except Exception as error:
                raise fault_of(error, self.contract) from error
        require_untouched(_inputs(batch, names), _inputs(given, names), _COPY)
        return self._outcome(output, batch)

    def merged(self, outcomes: Collection[Outcome]) -> Outcome:
        """Several runs as one: rows after rows, metrics merged."""
        names = next(iter(outcomes)).rows if outcomes else ()
        rows = {name: [row for outcome in outcomes for row in outcome.rows[name]] for name in names}
        return Outcome(rows, merge_all(outcome.metrics for outcome in outcomes))

    def _outcome(self, output: NodeOutput, batch: Batch) -> Outcome:
        if output.flags is not None:
            return Outcome({FLAGS: list(output.flags)}, output.metrics)
        types = {write.name: write.type for write in self.contract.writes}
        places = {name: _places(types[name], output, batch) for name in output.columns}
        rows = {name: real_rows(column, places[name]) for name, column in output.columns.items()}
        return Outcome(rows, output.metrics)


def column_choices(node: Node[..., Any], given: Mapping[str, Any]) -> list[frozenset[str]]:
    """What to leave out of the optional columns, each choice a run of its own: nothing if the node's check allows it.

    Else each column without which it does: some nodes take one of two columns, never both.
    """
    contract = node.contract
    try:
        options = option_values(contract, given)
        if accepts(contract, node, options, ()):
            return [frozenset()]
        optional = [read.name for read in contract.reads if read.optional]
        choices = [frozenset({name}) for name in optional if accepts(contract, node, options, {name})]
    except RunFault:
        return [frozenset()]
    return choices or [frozenset()]


def _inputs(batch: Batch, names: Collection[str]) -> dict[str, Any]:
    """What a node could edit."""
    carried = {"group_ids": batch.group_ids, "seeds": batch.seeds, "positions": batch.positions}
    return {**{name: batch.columns[name] for name in names}, **carried}


def _places(kind: ColumnType, output: NodeOutput, batch: Batch) -> Tensor | None:
    """The places that mean something, by the masks that the node writes itself, else by those of the rows."""
    own = {name: column for name, column in output.columns.items() if isinstance(column, Tensor)}
    have, want = output.widths, batch.widths
    if "attention_mask" in own:
        masks = {name: own[name] for name in ("attention_mask", "response_mask") if name in own}
        return replace(batch, columns={**batch.columns, **masks}, widths=have).places(kind)
    if "T" in kind.dims[1:2] and "response_mask" in own:
        return own["response_mask"]
    same = {"P": have.P == want.P, "T": have.T == want.T, "S": have == want}
    return batch.places(kind) if all(same.get(dim, True) for dim in kind.dims) else None
