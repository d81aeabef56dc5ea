"""Column problems: what a call reads that no edge, or more than one, brings it as the declared type."""

from collections.abc import Iterable, Iterator, Mapping

from dagrl.errors import Problem
from dagrl.graph.contract import NodeContract, Read
from dagrl.graph.pipeline import Call, Origin, Pipeline
from dagrl.graph.writers import BUILT_IN_WRITERS

#: Columns of an edge that a message lists.
_SHOWN_COLUMNS = 3
#: Dims whose size differs from step to step.
_WIDTHS = frozenset({"P", "T", "S"})


def column_problems(pipeline: Pipeline, call: Call) -> Iterator[Problem]:
    """Columns that are missing, come twice or have another type, and widths that the call cannot know."""
    for read in call.reads():
        origins = call.origins(read.name)
        if not origins and not read.optional:
            yield _missing(pipeline, call, read)
        elif len(origins) > 1:
            yield _several_writers(pipeline, call, read, origins)
        elif origins:
            yield from _other_type(pipeline, call, read, origins[0])
    yield from _unknown_widths(pipeline, call)


def _several_writers(pipeline: Pipeline, call: Call, read: Read, origins: tuple[Origin, ...]) -> Problem:
    writers = ", ".join(f"`{origin.call}` ({pipeline.call(origin.call).at})" for origin in origins)
    return Problem(
        f"`{call.name}` reads `{read.name}`, and {len(origins)} edges into it carry that column.",
        call.at,
        (("writers", writers),),
        f'narrow one with `.only(...)`, or rename: `.rename({origins[0].column}="other_name")`',
    )


def _other_type(pipeline: Pipeline, call: Call, read: Read, origin: Origin) -> Iterator[Problem]:
    writer = pipeline.call(origin.call)
    written = writer.column_type(origin.column)
    if written != read.type:
        yield Problem(
            f"`{call.name}` reads `{read}`, but `{writer.name}` writes it as `{written}`.",
            call.at,
            (("written", f"`{writer.name}` at {writer.at}, declared at {writer.contract.at}"),),
            f"make `{writer.contract.name}` write {read.type}, or rename the edge if another column is meant",
        )


def _unknown_widths(pipeline: Pipeline, call: Call) -> Iterator[Problem]:
    """A role-less node cannot know a width that its rows already have unless it reads a column of that width."""
    if call.contract.role is not None:
        return
    read = {dim for read in call.reads() if call.origins(read.name) for dim in read.type.dims}
    read |= {"P", "T"} if "S" in read else set()
    above = pipeline.ancestors(call.name)
    known = {dim for other in above for write in other.contract.writes for dim in write.type.dims}
    for write in call.contract.writes:
        unknown = (set(write.type.dims) & _WIDTHS & known) - read
        if unknown:
            yield Problem(
                f"`{call.name}` writes `{write.name}: {write.type}`, but reads no column that is as wide.",
                call.at,
                (("declared", str(call.contract.at)),),
                f"let `{call.contract.name}` read one, e.g. `response_mask`, and take the width from it",
            )


def _missing(pipeline: Pipeline, call: Call, read: Read) -> Problem:
    inputs = "; ".join(f"{edge.call} ({_few(edge.columns)})" for edge in call.inputs)
    return Problem(
        f"`{call.name}` reads `{read}`, but no edge into it carries that column.",
        call.at,
        (("inputs", inputs or "none"), *_required_by(call, read)),
        _who_writes(pipeline, call, read.name),
    )


def _few(columns: Mapping[str, str]) -> str:
    names = [*list(columns)[:_SHOWN_COLUMNS], *(["..."] if len(columns) > _SHOWN_COLUMNS else [])]
    return ", ".join(names) or "no column"


def _required_by(call: Call, read: Read) -> Iterator[tuple[str, str]]:
    terms = [term for terms in call.loss_terms for term in terms.live]
    for term in terms:
        if any(wanted.name == read.name for wanted in term.contract.reads):
            yield "read by", f"loss term `{term}`"


def _who_writes(pipeline: Pipeline, call: Call, column: str) -> str:
    above = [other.name for other in pipeline.calls if other.index < call.index and _writes(other.contract, column)]
    if above:
        return f"`{above[-1]}` writes `{column}`: pass its output to `{call.name}`"
    below = [other for other in pipeline.calls if other.index > call.index and _writes(other.contract, column)]
    if below:
        return f"`{below[0].name}` writes `{column}` at {below[0].at}: call it before `{call.name}` and pass its output"
    known = BUILT_IN_WRITERS.get(column, ())
    if known:
        return f"`{column}` is written by {_listed(known)}: call it and pass its output to `{call.name}`"
    return f'no built-in node writes `{column}`: call one of your own, or rename one: `.rename(...="{column}")`'


def _writes(contract: NodeContract, column: str) -> bool:
    return any(write.name == column for write in contract.writes)


def _listed(names: Iterable[str]) -> str:
    *others, last = [f"`{name}`" for name in names]
    return f"{', '.join(others)} or {last}" if others else last
