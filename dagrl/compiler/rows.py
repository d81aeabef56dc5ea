"""Which rows a call sees, known before anything runs: its `prompts` call and the filters on the way.

An edge that leaves a `refill` block stands for the rows that the block lets pass: there the block counts as one filter,
in place of all that stand inside it.
"""

from collections.abc import Mapping
from dataclasses import dataclass

from dagrl.graph.pipeline import Call, Pipeline


@dataclass(frozen=True)
class RowSet:
    """Rows of the source calls that passed the filters, calls or `refill` blocks; a valid call has just one source."""

    sources: frozenset[str]
    filters: frozenset[str]


@dataclass(frozen=True)
class CallRows:
    """The rows that a call reads and those that its edge stands for."""

    read: RowSet
    handed_on: RowSet


#: The rows of each call of a pipeline.
Rows = Mapping[str, CallRows]


def symbolic_rows(pipeline: Pipeline) -> Rows:
    """The rows of every call: the filters of all edges passed to it, read or not."""
    rows: dict[str, CallRows] = {}
    for call in pipeline.calls:
        given = [_given(rows, pipeline.call(edge.call), call) for edge in call.inputs]
        sources = frozenset[str]().union(*(row.sources for row in given))
        filters = frozenset[str]().union(*(row.filters for row in given))
        if call.contract.rows == "source":
            sources |= {call.name}
        handed_on = filters | {call.name} if call.contract.rows == "filter" else filters
        rows[call.name] = CallRows(RowSet(sources, filters), RowSet(sources, handed_on))
    return rows


def _given(rows: Rows, writer: Call, reader: Call) -> RowSet:
    """The rows of a call's edge as another call sees them."""
    handed_on = rows[writer.name].handed_on
    if writer.loop is None or writer.loop == reader.loop:
        return handed_on
    return RowSet(handed_on.sources, frozenset({writer.loop}))
