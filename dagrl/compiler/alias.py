"""Alias pass: a column that equals an engine output of the update that reads it is not computed twice."""

from dataclasses import dataclass, replace

from dagrl.compiler.prune import Liveness
from dagrl.compiler.rows import Rows
from dagrl.errors import counted
from dagrl.graph.pipeline import Call, Pipeline


@dataclass(frozen=True)
class Aliases:
    """What was aliased: for each update, column -> engine output; and why other candidates were kept."""

    by_update: dict[str, dict[str, str]]
    aliased: dict[str, str]
    kept: dict[str, str]


def alias(pipeline: Pipeline, rows: Rows, live: Liveness) -> tuple[Liveness, Aliases]:
    """Drop every live call that ``alias_of`` lets the update provide; say why not for the others."""
    found = Aliases({}, {}, {})
    for call in live.calls:
        output = call.contract.alias_of
        if output is None:
            continue
        (write,) = call.contract.writes
        readers = [name for name, reads in live.reads.items() if any(o.call == call.name for o in reads.values())]
        reason = _obstacle(pipeline, rows, live, call, readers)
        if reason is not None:
            found.kept[call.name] = reason
            continue
        (update,) = readers
        found.by_update.setdefault(update, {}).update(dict.fromkeys(_provided(live, call, update), output))
        found.aliased[call.name] = f"`{write.name}` is the detached `{output}` of `{update}`'s own forward pass"
    return _without(live, found), found


def _provided(live: Liveness, call: Call, reader: str) -> list[str]:
    """The names under which ``reader`` reads what ``call`` writes."""
    return [name for name, origin in live.reads[reader].items() if origin.call == call.name]


def _without(live: Liveness, found: Aliases) -> Liveness:
    """Liveness after the aliased calls and what only they read are gone."""
    reads = {
        name: {column: origin for column, origin in reads.items() if origin.call not in found.aliased}
        for name, reads in live.reads.items()
        if name not in found.aliased
    }
    origins = {origin for of_call in reads.values() for origin in of_call.values()}
    columns = {name: frozenset(o.column for o in origins if o.call == name) for name in reads}
    calls = tuple(call for call in live.calls if call.name in reads)
    return replace(live, calls=calls, reads=reads, columns=columns)


def _obstacle(pipeline: Pipeline, rows: Rows, live: Liveness, call: Call, readers: list[str]) -> str | None:
    """Why the call must run, or None. The first that applies, in the order a reader would ask."""
    if len(readers) != 1:
        return f"it is read by {', '.join(f'`{name}`' for name in readers)}: only a single update can provide it"
    update = pipeline.call(readers[0])
    contract = update.contract
    if contract.split != "minibatch" or contract.loss_columns is None or "aliases" not in contract.executor_keywords:
        return f"its reader `{update.name}` is no update"
    own = [read.name for read in contract.reads if read.name in _provided(live, call, update.name)]
    if own:
        return f"`{update.name}` reads `{own[0]}` itself, not only in its loss"
    if update.group != call.group:
        return f"`{update.name}` runs on another worker group"
    if _mutations_before(live, call) != _mutations_before(live, update):
        return f"the weights change between it and `{update.name}`"
    return _different_rows(rows, live, call, update) or _several_updates(pipeline, rows, update)


def _mutations_before(live: Liveness, call: Call) -> int:
    return sum(
        other.contract.mutates and other.group == call.group and other.index < call.index for other in live.calls
    )


def _different_rows(rows: Rows, live: Liveness, call: Call, update: Call) -> str | None:
    if rows[call.name].read != rows[update.name].read:
        return f"`{update.name}` sees other rows"
    for column, origin in live.reads[call.name].items():
        if live.reads[update.name].get(column) != origin:
            return f"`{update.name}` does not read the same `{column}`"
    return None


def _several_updates(pipeline: Pipeline, rows: Rows, update: Call) -> str | None:
    options = update.options
    if options["epochs"] != 1:
        return f"`{update.name}` runs {counted(options['epochs'], 'epoch')}"
    if update.group is not None and update.group.model.dropout:
        return f"`{update.group.name}` trains with dropout"
    (source,) = rows[update.name].read.sources
    num_rows, size = _most_rows(pipeline, pipeline.call(source)), options["mini_batch_size"]
    if 0 < size < num_rows:
        return f"`{update.name}` takes {counted(num_rows, 'row')} in mini-batches of {size}"
    return None


def _most_rows(pipeline: Pipeline, source: Call) -> int:
    """The rows that an update can get: of a `refill` block, those of the groups that it keeps."""
    sizes = source.options
    groups = sizes["batch_size"] if source.loop is None else pipeline.loops[source.loop].groups
    return groups * sizes["n"]
