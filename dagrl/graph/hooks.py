"""Functions beside a loss, `prepare=` and `project=`: what they read, and what the loss reads of them by name."""

import inspect
from collections.abc import Callable, Mapping
from dataclasses import replace
from typing import Any

from dagrl.data.columns import CARRIED, ENGINE_OUTPUTS, LEGEND, ColumnType, refusal
from dagrl.graph.annotations import AnnotationError, resolve_hints, split_optional
from dagrl.graph.contract import Hook, Option, Read
from dagrl.graph.draft import FAULTY, Draft, Function, type_or_none
from dagrl.graph.parameters import TOKEN_TYPE, TOKEN_UNIFORM, column_parameter
from dagrl.graph.returns import IMPORT_IT
from dagrl.graph.source import function_location

NEW_LOGPROBS = "new_logprobs"
NEW_LOGITS = "new_logits"
_LOGITS_TYPE = ColumnType("f32", ("N", "V"))
_RESULT_TYPE = ColumnType("f32", ("N",))

_Parameter = Callable[[Draft, inspect.Parameter, Any], None]
_Result = Callable[[Draft, Function, Any], "tuple[tuple[Read, ...], type | None]"]


def prepare_hook(draft: Draft, function: Function | None) -> Hook | None:
    """The ``prepare=`` function of a loss, its faults noted in the loss's draft."""
    return _hook(draft, "prepare", function, _prepare_parameter, _prepare_result)


def project_hook(draft: Draft, function: Function | None) -> Hook | None:
    """The ``project=`` function of a loss, its faults noted in the loss's draft."""
    return _hook(draft, "project", function, _project_parameter, _project_result)


def reads_forward(hook: Hook, aliases: Mapping[str, str]) -> bool:
    """Whether a ``prepare=`` function reads the policy's log-probs, or a column that an engine output stands in for."""
    return NEW_LOGPROBS in hook.engine_inputs or any(read.name in aliases for read in hook.reads)


def merge_hooks(draft: Draft, hooks: Mapping[str, Hook | None]) -> None:
    """Add the hooks' columns to those that the loss reads; note what of a hook does not fit the loss."""
    reads = {read.name: read for read in draft.reads}
    for flag, hook in hooks.items():
        if hook is None:
            continue
        _check_fit(draft, f"{flag} `{hook.name}`", hook)
        for read in hook.reads:
            known = reads.setdefault(read.name, read)
            reads[read.name] = replace(known, optional=known.optional and read.optional)
            if known.type != read.type:
                what = f"{flag} `{hook.name}` reads `{read}`, but the loss reads `{known}`"
                draft.fault(what, f"make both read `{read.name}` as one type")
    draft.reads = list(reads.values())


def _check_fit(draft: Draft, owner: str, hook: Hook) -> None:
    names = [read.name for read in hook.gives]
    if names and not set(names) & set(draft.taken):
        listed = ", ".join(f"`{name}`" for name in names)
        draft.fault(f"it takes nothing of what {owner} gives: {listed}", f"add a parameter `{hook.gives[0].name}`")
    known = {option.name for option in draft.options}
    for name in hook.options:
        if name not in known:
            fix = f"add `{name}` to the loss's own options, or drop it"
            draft.fault(f"{owner} takes the option `{name}`, which the loss does not have", fix)


def _hook(draft: Draft, flag: str, function: Function | None, parameter: _Parameter, result: _Result) -> Hook | None:
    if function is None:
        return None
    if (
        not inspect.isfunction(function)
        or inspect.iscoroutinefunction(function)
        or inspect.isgeneratorfunction(function)
    ):
        draft.fault(f"{flag}={function!r} is no plain function", "declare one: `def my_function(...) -> ...:`")
        return None
    own = Draft()
    hints = _hints(own, function)
    for one in inspect.signature(function).parameters.values():
        if one.name in hints:
            _parameter(own, one, hints[one.name], parameter)
    gives, returned = result(own, function, hints.get("return"))
    draft.faults += [(f"{flag} `{function.__name__}`: {what}", fix) for what, fix in own.faults]
    for read in gives:
        if read.name in draft.given:
            draft.fault(f"`prepare=` and `project=` both give `{read.name}`", "rename one of them")
        draft.given[read.name] = read.type
    return Hook(
        name=function.__name__,
        function=function,
        at=function_location(function),
        reads=tuple(own.reads),
        engine_inputs=frozenset(own.engine_outputs),
        options=tuple(option.name for option in own.options),
        gives=gives,
        result=returned,
    )


def _hints(own: Draft, function: Function) -> Mapping[str, Any]:
    try:
        hints = resolve_hints(function)
    except AnnotationError as error:
        own.fault(str(error), IMPORT_IT)
        return {}
    for name in inspect.signature(function).parameters:
        if name not in hints:
            own.fault(f"parameter `{name}` has no annotation", "annotate it: a column, or an option's type")
    return hints


def _parameter(own: Draft, parameter: inspect.Parameter, annotation: Any, positional: _Parameter) -> None:
    if parameter.kind is parameter.KEYWORD_ONLY:
        own.options.append(Option(parameter.name, annotation))
    elif parameter.kind is not parameter.POSITIONAL_OR_KEYWORD:
        own.fault(f"parameter `{parameter.name}` is variadic or positional-only", "name every column and option")
    elif parameter.name in CARRIED:
        fix = f"for random numbers take `{TOKEN_UNIFORM}` in `prepare=`; fold anything else into a column in a node"
        own.fault(f"it cannot read `{parameter.name}`", fix)
    else:
        positional(own, parameter, annotation)


def _prepare_parameter(own: Draft, parameter: inspect.Parameter, annotation: Any) -> None:
    name = parameter.name
    if name in (NEW_LOGPROBS, TOKEN_UNIFORM):
        if type_or_none(annotation) != TOKEN_TYPE:
            own.fault(f"`{name}` is {TOKEN_TYPE}", 'annotate `Float32[Tensor, "B T"]`')
        own.engine_outputs.append(name)
    elif name.startswith("new_"):
        own.fault(f"the engine has no `{name}` for it", f"take `{NEW_LOGPROBS}`, which comes detached")
    else:
        column_parameter(own, parameter, annotation)
        if own.reads and own.reads[-1].type.is_object:
            own.fault(f"it cannot read the object column `{own.reads.pop().name}`", "make it a tensor in a node")


def _prepare_result(own: Draft, function: Function, annotation: Any) -> tuple[tuple[Read, ...], type | None]:
    is_tuple = isinstance(annotation, type) and issubclass(annotation, tuple)
    if not is_tuple or not inspect.get_annotations(annotation):
        own.fault("its result is no NamedTuple of columns", "annotate `-> MyColumns`, a NamedTuple that the loss reads")
        return (), None
    try:
        hints = resolve_hints(annotation)
    except AnnotationError as error:
        own.fault(f"`{annotation.__name__}`: {error}", IMPORT_IT)
        return (), None
    return tuple(read for name, hint in hints.items() for read in _field(own, annotation, name, hint)), annotation


def _field(own: Draft, result: type, name: str, annotation: Any) -> list[Read]:
    what = f"field `{name}` of `{result.__name__}`"
    found = own.column_or_fault(what, annotation)
    reason = refusal(name)
    if reason is not None:
        own.fault(f"{what} cannot have that name: {reason}", "choose another name")
    elif found is None or found.is_object:
        own.fault(f"{what} is no tensor column", 'annotate it with jaxtyping, e.g. `Bool[Tensor, "B T"]`')
    elif found is not FAULTY:
        return [Read(name, found)]
    return []


def _project_parameter(own: Draft, parameter: inspect.Parameter, annotation: Any) -> None:
    name = parameter.name
    inner, optional = split_optional(annotation)
    found = own.column_or_fault(f"parameter `{name}`", inner, "N")
    if found is FAULTY:
        return
    if name == NEW_LOGITS:
        if found != _LOGITS_TYPE:
            own.fault(f"`{name}` is {_LOGITS_TYPE}", 'annotate `Float32[Tensor, "N V"]`')
        own.engine_outputs.append(name)
    elif name in ENGINE_OUTPUTS or name == TOKEN_UNIFORM or name.startswith("new_"):
        own.fault(f"it cannot take `{name}`", f"it maps `{NEW_LOGITS}` and columns; combine results in the loss")
    elif found is None or found.is_object:
        own.fault(f"parameter `{name}` is no column of tokens", 'annotate it by token, e.g. `Int64[Tensor, "N K"]`')
    elif optional != (parameter.default is None):
        own.fault(
            f"`{name}` must be optional and have the default None, or neither", f"write `{name}: ... | None = None`"
        )
    else:
        _token_column(own, name, found, optional)


def _token_column(own: Draft, name: str, found: ColumnType, optional: bool) -> None:
    """The column behind a parameter [N ...]: [B] where the legend says so, else [B T ...]."""
    known = LEGEND[name].type.dims if name in LEGEND else ("B", "T")
    if known[1:2] in (("P",), ("S",)):
        own.fault(f"`{name}` has no value for each response token", "read a column [B T], such as `responses`")
        return
    dims = ("B",) if known == ("B",) and len(found.dims) == 1 else ("B", "T", *found.dims[1:])
    own.reads.append(Read(name, ColumnType(found.dtype, dims), optional))


def _project_result(own: Draft, function: Function, annotation: Any) -> tuple[tuple[Read, ...], type | None]:
    if NEW_LOGITS not in own.engine_outputs:
        own.fault(f"it does not take `{NEW_LOGITS}`", f'add `{NEW_LOGITS}: Float32[Tensor, "N V"]`')
    if type_or_none(annotation, "N") != _RESULT_TYPE:
        own.fault("its result is not one number for each token", 'annotate `-> Float32[Tensor, " N"]`')
    name = function.__name__
    reason = refusal(name)
    if reason is not None:
        own.fault(f"the loss cannot take its result as `{name}`: {reason}", "rename the function")
        return (), None
    return (Read(name, TOKEN_TYPE),), None
