"""Turn a function's signature into its contract; every fault of the signature in one error."""

import inspect
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any, get_args, get_origin

from dagrl.data.columns import CARRIED, ENGINE_OUTPUTS, ColumnType, refusal
from dagrl.data.metrics import Metrics
from dagrl.errors import ContractError, Problem
from dagrl.graph.annotations import AnnotationError, column_type, resolve_hints, split_optional
from dagrl.graph.contract import (
    EXECUTOR_KEYWORDS,
    MINIBATCH_OPTIONS,
    NO_EXAMPLES,
    REQUIRED,
    SOURCE_OPTIONS,
    Check,
    Examples,
    LossContract,
    Needs,
    NodeContract,
    Option,
    Read,
    Result,
    Role,
    Rows,
    Split,
    Write,
)
from dagrl.graph.roles import ROLES, LossColumns
from dagrl.graph.source import function_location

Function = Callable[..., Any]
_CARRIED_TYPE = ColumnType("i64", ("B",))
_FLAG_TYPE = ColumnType("bool", ("B",))
_TOKEN_TYPE = ColumnType("f32", ("B", "T"))
_FAULTY = ColumnType("faulty", ())
_IMPORT_IT = "import it at module level, outside TYPE_CHECKING"


@dataclass
class _Draft:
    """What a signature has told so far, and what is wrong with it."""

    role: Role | None = None
    reads: list[Read] = field(default_factory=list[Read])
    carried: list[str] = field(default_factory=list[str])
    loss_columns: str | None = None
    positions: str | None = None
    options: list[Option] = field(default_factory=list[Option])
    executor_keywords: set[str] = field(default_factory=set[str])
    engine_outputs: list[str] = field(default_factory=list[str])
    state: type | None = None
    faults: list[tuple[str, str | None]] = field(default_factory=list[tuple[str, str | None]])

    def fault(self, what: str, fix: str | None = None) -> None:
        self.faults.append((what, fix))


def node_contract(
    function: Function,
    *,
    writes: str | None,
    needs: Needs | None,
    mutates: bool,
    split: Split,
    rows: Rows,
    alias_of: str | None,
    check: Check | None,
    examples: Examples = NO_EXAMPLES,
) -> NodeContract:
    """The contract of a node function.

    Raises:
        ContractError: listing every parameter, result or flag that is no contract.
    """
    draft = _Draft()
    hints = _hints(function, "node", draft)
    for position, parameter in enumerate(inspect.signature(function).parameters.values()):
        if parameter.name in hints:
            _node_parameter(draft, parameter, hints[parameter.name], first=position == 0)
    result, written = _result(draft, hints.get("return"), writes, rows)
    _check_flags(draft, needs, mutates, split, rows, alias_of, written)
    _check_examples(draft, examples)
    _raise_faults(function, "node", draft)
    return NodeContract(
        name=function.__name__,
        at=function_location(function),
        doc=_first_line(function),
        role=draft.role,
        reads=tuple(draft.reads),
        carried=tuple(draft.carried),
        loss_columns=draft.loss_columns,
        positions=draft.positions,
        writes=written,
        options=tuple(draft.options),
        executor_keywords=frozenset(draft.executor_keywords),
        state=draft.state,
        result=result,
        needs=needs or ("train" if draft.role else None),
        mutates=mutates,
        split=split,
        rows=rows,
        alias_of=alias_of,
        check=check,
        examples=dict(examples),
    )


def loss_contract(function: Function, *, check: Check | None, examples: Examples = NO_EXAMPLES) -> LossContract:
    """The contract of a loss function.

    Raises:
        ContractError: listing every parameter or result that is no contract.
    """
    draft = _Draft()
    hints = _hints(function, "loss", draft)
    for parameter in inspect.signature(function).parameters.values():
        if parameter.name in hints:
            _loss_parameter(draft, parameter, hints[parameter.name])
    if not draft.engine_outputs:
        draft.fault(
            "it reads no engine output, so it has no gradient",
            f"take one of {', '.join(f'`{name}`' for name in sorted(ENGINE_OUTPUTS))}",
        )
    returned = get_args(hints.get("return"))
    if len(returned) != 2 or _type_or_none(returned[0]) != _TOKEN_TYPE or returned[1] is not Metrics:
        draft.fault(
            "its result is not per-token losses and metrics",
            'annotate `-> tuple[Float32[Tensor, "B T"], Metrics]`',
        )
    _check_examples(draft, examples)
    _raise_faults(function, "loss", draft)
    return LossContract(
        name=function.__name__,
        at=function_location(function),
        doc=_first_line(function),
        reads=tuple(draft.reads),
        engine_outputs=tuple(draft.engine_outputs),
        options=tuple(draft.options),
        check=check,
        examples=dict(examples),
    )


def _hints(function: Function, kind: str, draft: _Draft) -> Mapping[str, Any]:
    hints: Mapping[str, Any] = {}
    try:
        hints = resolve_hints(function)
    except AnnotationError as error:
        draft.fault(str(error), _IMPORT_IT)
        _raise_faults(function, kind, draft)
    for name in inspect.signature(function).parameters:
        if name not in hints:
            draft.fault(f"parameter `{name}` has no annotation", "annotate it: a column, a role, or an option's type")
    return hints


def _node_parameter(draft: _Draft, parameter: inspect.Parameter, annotation: Any, *, first: bool) -> None:
    name = parameter.name
    if parameter.kind is parameter.KEYWORD_ONLY:
        _keyword(draft, parameter, annotation)
    elif parameter.kind is not parameter.POSITIONAL_OR_KEYWORD:
        draft.fault(f"parameter `{name}` is variadic or positional-only", "name every column and option")
    elif annotation in ROLES:
        if not first:
            draft.fault(f"parameter `{name}` is a role but not the first parameter", "put the role first")
        draft.role = Role(name, annotation)
    elif annotation is LossColumns:
        draft.loss_columns = name
    elif name == "positions":
        draft.positions = name
    else:
        _column_parameter(draft, parameter, annotation)


def _keyword(draft: _Draft, parameter: inspect.Parameter, annotation: Any) -> None:
    name = parameter.name
    if name == "state":
        draft.state = annotation
    elif name in EXECUTOR_KEYWORDS:
        draft.executor_keywords.add(name)
    elif name == "name":
        draft.fault("`name` cannot be an option", "every node accepts `name=`, which names the call")
    else:
        default = REQUIRED if parameter.default is parameter.empty else parameter.default
        draft.options.append(Option(name, annotation, default))


def _column_parameter(draft: _Draft, parameter: inspect.Parameter, annotation: Any) -> None:
    name = parameter.name
    inner, optional = split_optional(annotation)
    try:
        found = column_type(inner)
    except AnnotationError as error:
        draft.fault(f"parameter `{name}` {error}")
        return
    if found is None:
        fix = "annotate a column (jaxtyping or Objects), a role first, or make an option keyword-only (after `*`)"
        draft.fault(f"parameter `{name}` is no column, role or option", fix)
    elif name in CARRIED:
        _carried_parameter(draft, name, found)
    elif optional and parameter.default is not None:
        draft.fault(f"optional column `{name}` has no default", f"write `{name}: ... | None = None`")
    elif not optional and parameter.default is not parameter.empty:
        draft.fault(f"column `{name}` has a default but is not optional", f"write `{name}: ... | None = None`")
    else:
        draft.reads.append(Read(name, found, optional))


def _carried_parameter(draft: _Draft, name: str, found: ColumnType) -> None:
    if name == "row_ids":
        draft.fault("`row_ids` stays with the executor", "read `group_ids` or `seeds`")
    elif found != _CARRIED_TYPE:
        draft.fault(f"`{name}` is {_CARRIED_TYPE}, not {found}", 'annotate `Int64[Tensor, " B"]`')
    else:
        draft.carried.append(name)


def _loss_parameter(draft: _Draft, parameter: inspect.Parameter, annotation: Any) -> None:
    if parameter.kind is parameter.KEYWORD_ONLY:
        _loss_keyword(draft, parameter, annotation)
    elif parameter.kind is not parameter.POSITIONAL_OR_KEYWORD:
        draft.fault(f"parameter `{parameter.name}` is variadic or positional-only", "name every column and option")
    elif parameter.name in ENGINE_OUTPUTS:
        if _type_or_none(annotation) != _TOKEN_TYPE:
            draft.fault(f"`{parameter.name}` is {_TOKEN_TYPE}", 'annotate `Float32[Tensor, "B T"]`')
        draft.engine_outputs.append(parameter.name)
    elif parameter.name.startswith("new_"):
        known = ", ".join(sorted(ENGINE_OUTPUTS))
        draft.fault(f"parameter `{parameter.name}` is no engine output", f"the engine's outputs are {known}")
    else:
        _column_parameter(draft, parameter, annotation)
    if draft.carried:
        draft.fault(f"a loss cannot read `{draft.carried.pop()}`", "fold it into a column in a node")


def _loss_keyword(draft: _Draft, parameter: inspect.Parameter, annotation: Any) -> None:
    if parameter.name == "state" or parameter.name in EXECUTOR_KEYWORDS:
        draft.fault(f"a loss cannot take `{parameter.name}`", "only a node can; choose another name for an option")
    else:
        _keyword(draft, parameter, annotation)


def _result(draft: _Draft, annotation: Any, writes: str | None, rows: Rows) -> tuple[Result, tuple[Write, ...]]:
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


def _columns_part(draft: _Draft, part: Any, writes: str | None, rows: Rows) -> tuple[Any, tuple[Write, ...]]:
    if rows == "filter":
        if writes is not None or _type_or_none(part) != _FLAG_TYPE:
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
    found = _column_or_fault(draft, "its result", part)
    if found is _FAULTY:
        return None, ()
    if found is None or writes is None:
        draft.fault(
            "its result is no declared column",
            'one column: writes="name" and a column annotation; several: a NamedTuple of columns',
        )
        return None, ()
    _check_written_name(draft, writes)
    return "one", (Write(writes, found),)


def _fields(draft: _Draft, result: Any) -> tuple[Write, ...]:
    written: list[Write] = []
    try:
        hints = resolve_hints(result)
    except AnnotationError as error:
        draft.fault(f"`{result.__name__}`: {error}", _IMPORT_IT)
        return ()
    for name, annotation in hints.items():
        inner, optional = split_optional(annotation)
        found = _column_or_fault(draft, f"field `{name}` of `{result.__name__}`", inner)
        _check_written_name(draft, name)
        if found is None:
            draft.fault(f"field `{name}` of `{result.__name__}` is no column", "annotate it with jaxtyping or Objects")
        elif found is not _FAULTY:
            written.append(Write(name, found, optional))
    return tuple(written)


def _check_written_name(draft: _Draft, name: str) -> None:
    reason = refusal(name)
    if reason is not None:
        draft.fault(f"it cannot write a column `{name}`: {reason}", "choose another name")


def _column_or_fault(draft: _Draft, what: str, annotation: Any) -> ColumnType | None:
    """The column type, None for no column, or ``_FAULTY`` after an ill-formed one was reported."""
    try:
        return column_type(annotation)
    except AnnotationError as error:
        draft.fault(f"{what} {error}")
        return _FAULTY


def _type_or_none(annotation: Any) -> ColumnType | None:
    try:
        return column_type(annotation)
    except AnnotationError:
        return None


def _check_choices(draft: _Draft, **flags: str | None) -> None:
    choices = {"needs": (None, *get_args(Needs)), "split": get_args(Split), "rows": get_args(Rows)}
    for flag, value in flags.items():
        if value not in choices[flag]:
            known = ", ".join(repr(choice) for choice in choices[flag])
            draft.fault(f"{flag}={value!r} is unknown", f"choose one of {known}")


def _check_flags(
    draft: _Draft,
    needs: Needs | None,
    mutates: bool,
    split: Split,
    rows: Rows,
    alias_of: str | None,
    written: tuple[Write, ...],
) -> None:
    names = {option.name for option in draft.options}
    _check_choices(draft, needs=needs, split=split, rows=rows)
    if draft.role is None and (needs or mutates):
        draft.fault("it has needs= or mutates= but no role", "take a role first, e.g. `actor: Policy`")
    if mutates and needs == "rollout":
        draft.fault('it mutates with needs="rollout"', "only the training weights can be mutated")
    if draft.state is not None and split != "batch":
        draft.fault("a node with state sees the whole batch", 'declare split="batch"')
    if rows == "source":
        _require_options(draft, "source", names, SOURCE_OPTIONS)
    if (rows == "source") != (draft.positions is not None):
        draft.fault('`positions` and rows="source" go together', "a source reads rows at `positions`")
    if split == "minibatch":
        _require_options(draft, "mini-batch", names, MINIBATCH_OPTIONS)
    if alias_of is not None and (alias_of not in ENGINE_OUTPUTS or len(written) != 1 or mutates):
        draft.fault(
            f"alias_of={alias_of!r} needs one written column and an engine output",
            f"the engine's outputs are {', '.join(sorted(ENGINE_OUTPUTS))}",
        )
    if draft.loss_columns is not None and not mutates:
        draft.fault("it takes LossColumns but does not mutate", "declare mutates=True")


def _check_examples(draft: _Draft, examples: Examples) -> None:
    known = {option.name for option in draft.options} | {read.name for read in draft.reads}
    known |= {"state"} if draft.state is not None else set()
    for name in examples:
        if name not in known:
            draft.fault(f"examples= names `{name}`, which it neither reads nor takes as an option", "mend the name")


def _require_options(draft: _Draft, kind: str, names: set[str], needed: tuple[str, ...]) -> None:
    missing = [name for name in needed if name not in names]
    if missing:
        draft.fault(
            f"a {kind} node needs the options {', '.join(f'`{name}`' for name in missing)}", "add them after `*`"
        )


def _raise_faults(function: Function, kind: str, draft: _Draft) -> None:
    if draft.faults:
        at = function_location(function)
        problems = [Problem(f"{what}.", at, fix=fix) for what, fix in draft.faults]
        raise ContractError(problems, f"{kind} `{function.__name__}`")


def _first_line(function: Function) -> str:
    return (inspect.getdoc(function) or "").split("\n", 1)[0]
