"""Prune pass: only what a root needs runs, and an optional column is computed only when it is read."""

from collections import defaultdict
from collections.abc import Iterable
from dataclasses import dataclass

from dagrl.compiler.rows import Rows
from dagrl.graph.pipeline import Call, Origin, Pipeline


@dataclass(frozen=True)
class Liveness:
    """The calls that run, what each reads from where, and the columns that each must hand on."""

    calls: tuple[Call, ...]
    reads: dict[str, dict[str, Origin]]
    columns: dict[str, frozenset[str]]
    pruned: dict[str, str]

    def readers(self, origin: Origin) -> list[str]:
        """The live calls that read a column."""
        return [name for name, reads in self.reads.items() if origin in reads.values()]


def prune(pipeline: Pipeline, rows: Rows) -> Liveness:
    """Walk from the roots upwards; what is not met is pruned, with the reason."""
    reads: dict[str, dict[str, Origin]] = {}
    columns: dict[str, set[str]] = defaultdict(set)
    waiting = [call.name for call in pipeline.calls if call.contract.is_root]
    while waiting:
        name = waiting.pop()
        if name in reads:
            continue
        call = pipeline.call(name)
        found = {read.name: call.origins(read.name) for read in call.reads()}
        reads[name] = {column: origins[0] for column, origins in found.items() if origins}
        for origin in reads[name].values():
            columns[origin.call].add(origin.column)
            waiting.append(origin.call)
        waiting += [*_filters(pipeline, call, rows[name].read.filters), *rows[name].read.sources]
    live = tuple(call for call in pipeline.calls if call.name in reads)
    return Liveness(
        calls=live,
        reads={call.name: reads[call.name] for call in live},
        columns={call.name: frozenset(columns[call.name]) for call in live},
        pruned={call.name: _reason(pipeline, call) for call in pipeline.calls if call.name not in reads},
    )


def _filters(pipeline: Pipeline, call: Call, of_rows: Iterable[str]) -> list[str]:
    """The filters that decide which rows there are for a call; in a `refill` block all of them, read or not."""
    inside = () if call.loop is None else pipeline.calls_in(call.loop)
    named = [name for name in of_rows if name not in pipeline.loops]
    return [*named, *(other.name for other in inside if other.contract.rows == "filter")]


def _reason(pipeline: Pipeline, call: Call) -> str:
    for reader in pipeline.graph.successors(call.name):
        inputs = pipeline.call(reader).inputs
        passed = {column for edge in inputs if edge.call == call.name for column in edge.columns}
        for terms in pipeline.call(reader).loss_terms:
            for term in terms.dropped:
                if passed & {read.name for read in term.contract.reads}:
                    return f"only loss term `{term.contract.name}` of `{reader}` would read it, with coefficient 0"
    readers = ", ".join(f"`{name}`" for name in pipeline.graph.successors(call.name))
    return f"passed to {readers}, but no call that runs reads its columns"
