"""What a node returns: one column, a NamedTuple of columns or flags; then state; then metrics."""

from typing import Any, get_args, get_origin

from dagrl.data.columns import ColumnType, refusal
from dagrl.data.metrics import Metrics
from dagrl.graph.annotations import AnnotationError, resolve_hints, split_optional
from dagrl.graph.contract import Result, Rows, Write
from dagrl.graph.draft import FAULTY, Draft, type_or_none

IMPORT_IT = "import it at module level, outside TYPE_CHECKING"
_FLAG_TYPE = ColumnType("bool", ("B",))


def result_of(draft: Draft, annotation: Any, writes: str | None, rows: Rows) -> tuple[Result, tuple[Write, ...]]:
    """How the return value is laid out, and the columns that it holds."""
    parts = list(get_args(annotation)) if get_origin(annotation) is tuple else [annotation]
    parts = [part for part in parts if part is not None and part is not type(None)]
    metrics = bool(parts) and parts[-1] is Metrics
    if metrics:
        parts.pop()
    state = draft.state is not None and bool(parts) and parts[-1] is draft.state
    if state:
        parts.pop()
    if draft.state is not None and not state:
        draft.fault("it takes `state` but does not return it", "return the new state after the columns")
    if len(parts) > 1:
        fix = "several columns: a NamedTuple whose fields are the columns"
        draft.fault("its result is not columns, state, Metrics in that order", fix)
        return Result(None, state, metrics), ()
    columns, written = _columns_part(draft, parts[0] if parts else None, writes, rows)
    return Result(columns, state, metrics), written


def _columns_part(draft: Draft, part: Any, writes: str | None, rows: Rows) -> tuple[Any, tuple[Write, ...]]:
    if rows == "filter":
        if writes is not None or type_or_none(part) != _FLAG_TYPE:
            draft.fault("a filter returns one flag for each row and writes nothing", 'annotate `-> Bool[Tensor, " B"]`')
        return "one", ()
    if part is None:
        if writes is not None:
            draft.fault(f"it declares writes={writes!r} but returns nothing", "annotate the returned column")
        return None, ()
    if isinstance(part, type) and hasattr(part, "_fields"):
        if writes is not None:
            draft.fault("it has both writes= and a NamedTuple result", "drop writes=: the fields are the contract")
        return part, _fields(draft, part)
    found = draft.column_or_fault("its result", part)
    if found is FAULTY:
        return None, ()
    if found is None or writes is None:
        draft.fault(
            "its result is no declared column",
            'one column: writes="name" and a column annotation; several: a NamedTuple of columns',
        )
        return None, ()
    _check_written_name(draft, writes)
    return "one", (Write(writes, found),)


def _fields(draft: Draft, result: Any) -> tuple[Write, ...]:
    written: list[Write] = []
    try:
        hints = resolve_hints(result)
    except AnnotationError as error:
        draft.fault(f"`{result.__name__}`: {error}", IMPORT_IT)
        return ()
    for name, annotation in hints.items():
        inner, optional = split_optional(annotation)
        found = draft.column_or_fault(f"field `{name}` of `{result.__name__}`", inner)
        _check_written_name(draft, name)
        if found is None:
            draft.fault(f"field `{name}` of `{result.__name__}` is no column", "annotate it with jaxtyping or Objects")
        elif found is not FAULTY:
            written.append(Write(name, found, optional))
    return tuple(written)


def _check_written_name(draft: Draft, name: str) -> None:
    reason = refusal(name)
    if reason is not None:
        draft.fault(f"it cannot write a column `{name}`: {reason}", "choose another name")
