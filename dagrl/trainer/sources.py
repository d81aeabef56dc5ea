"""The rows that each source of a pipeline reads: shuffled for training, all in order for an evaluation."""

from __future__ import annotations

from collections.abc import Mapping

from dagrl.data.rows import PromptRows, rows_in_use
from dagrl.errors import ConfigError, Problem, counted
from dagrl.executor.layout import SourceRows
from dagrl.graph.pipeline import Call
from dagrl.storage.checkpoints import Checkpoint
from dagrl.trainer.data_order import NO_ROWS, DataStream, ShuffledOrder, walk_in_order
from dagrl.workers.deployment import Planned


def training_orders(planned: Planned, seed: int) -> dict[str, ShuffledOrder]:
    """The order in which each source goes through its rows.

    Raises:
        ConfigError: when a source has fewer rows than a batch needs.
    """
    orders: dict[str, ShuffledOrder] = {}
    for call in (planned.pipeline.call(op.call) for op in planned.plan.runs if op.source == op.call):
        options = call.options
        rows = _rows(call)
        if len(rows) < options["batch_size"]:
            found = f"`{options['data']}` has {counted(len(rows), 'row')} in the split `{options['split']}`"
            what = f"{found}, fewer than batch_size={options['batch_size']}."
            raise ConfigError([Problem(what, call.at, fix="lower `batch_size` or give more data")])
        orders[call.name] = ShuffledOrder(len(rows), options["batch_size"], seed)
    return orders


def open_streams(orders: Mapping[str, ShuffledOrder], found: Checkpoint | None) -> dict[str, DataStream]:
    """The data of each source from where the run is; a checkpoint that does not say is of one batch a step."""
    if found is None:
        return {name: DataStream(order) for name, order in orders.items()}
    drawn = found.state["drawn"] if "drawn" in found.state else dict.fromkeys(orders, found.step)
    return {name: DataStream(order, drawn[name]) for name, order in orders.items()}


def evaluation_batches(planned: Planned) -> list[dict[str, SourceRows]]:
    """All rows of each source, in order; sources of different lengths end when the longest does."""
    walks: dict[str, list[SourceRows]] = {}
    for call in (planned.pipeline.call(op.call) for op in planned.plan.runs if op.source == op.call):
        rows = _rows(call)
        walks[call.name] = walk_in_order(len(rows), call.options["batch_size"])
    num_batches = max(len(walk) for walk in walks.values())
    return [
        {name: walk[number] if number < len(walk) else NO_ROWS for name, walk in walks.items()}
        for number in range(num_batches)
    ]


def _rows(call: Call) -> PromptRows:
    """The data of a source; ``test_share`` is an option that a source of one's own need not have."""
    options = call.options
    test_share = options["test_share"] if call.contract.option("test_share") is not None else 0.0
    return rows_in_use(options["data"], options["split"], test_share)
