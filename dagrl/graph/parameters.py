"""Parameters of a node or loss: columns, carried columns, a role, options and what the executor fills in."""

import inspect
from typing import Any

from dagrl.data.columns import CARRIED, ENGINE_OUTPUTS, ColumnType
from dagrl.graph.annotations import split_optional
from dagrl.graph.contract import EXECUTOR_KEYWORDS, REQUIRED, Option, Read, Role
from dagrl.graph.draft import FAULTY, Draft, type_or_none
from dagrl.graph.roles import ROLES, LossColumns

_CARRIED_TYPE = ColumnType("i64", ("B",))
TOKEN_TYPE = ColumnType("f32", ("B", "T"))
#: What the engine draws for a ``prepare=`` function.
TOKEN_UNIFORM = "token_uniform"


def node_parameter(draft: Draft, parameter: inspect.Parameter, annotation: Any, *, first: bool) -> None:
    """Note what a parameter of a node is."""
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
        column_parameter(draft, parameter, annotation)


def loss_parameter(draft: Draft, parameter: inspect.Parameter, annotation: Any) -> None:
    """Note what a parameter of a loss is."""
    if parameter.kind is parameter.KEYWORD_ONLY:
        _loss_keyword(draft, parameter, annotation)
    elif parameter.kind is not parameter.POSITIONAL_OR_KEYWORD:
        draft.fault(f"parameter `{parameter.name}` is variadic or positional-only", "name every column and option")
    elif parameter.name in draft.given:
        _given_parameter(draft, parameter, annotation)
    elif parameter.name in ENGINE_OUTPUTS:
        if type_or_none(annotation) != TOKEN_TYPE:
            draft.fault(f"`{parameter.name}` is {TOKEN_TYPE}", 'annotate `Float32[Tensor, "B T"]`')
        draft.engine_outputs.append(parameter.name)
    elif parameter.name == TOKEN_UNIFORM:
        draft.fault(f"a loss cannot take `{TOKEN_UNIFORM}`", "only its `prepare=` function can: draw there")
    elif parameter.name.startswith("new_"):
        known = ", ".join(sorted(ENGINE_OUTPUTS))
        draft.fault(f"parameter `{parameter.name}` is no engine output", f"the engine's outputs are {known}")
    else:
        column_parameter(draft, parameter, annotation)
    if draft.carried:
        draft.fault(f"a loss cannot read `{draft.carried.pop()}`", "fold it into a column in a node")


def _given_parameter(draft: Draft, parameter: inspect.Parameter, annotation: Any) -> None:
    """A parameter that takes what a function beside the loss returns."""
    name, given = parameter.name, draft.given[parameter.name]
    draft.taken.append(name)
    if type_or_none(annotation) != given:
        draft.fault(f"parameter `{name}` is not {given}, which `prepare=` or `project=` gives it", "annotate it so")


def _keyword(draft: Draft, parameter: inspect.Parameter, annotation: Any) -> None:
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


def _loss_keyword(draft: Draft, parameter: inspect.Parameter, annotation: Any) -> None:
    if parameter.name == "state" or parameter.name in EXECUTOR_KEYWORDS:
        draft.fault(f"a loss cannot take `{parameter.name}`", "only a node can; choose another name for an option")
    else:
        _keyword(draft, parameter, annotation)


def column_parameter(draft: Draft, parameter: inspect.Parameter, annotation: Any) -> None:
    """Note a column that a parameter reads, or one that every edge carries."""
    name = parameter.name
    inner, optional = split_optional(annotation)
    found = draft.column_or_fault(f"parameter `{name}`", inner)
    if found is FAULTY:
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


def _carried_parameter(draft: Draft, name: str, found: ColumnType) -> None:
    if name == "row_ids":
        draft.fault("`row_ids` stays with the executor", "read `group_ids` or `seeds`")
    elif found != _CARRIED_TYPE:
        draft.fault(f"`{name}` is {_CARRIED_TYPE}, not {found}", 'annotate `Int64[Tensor, " B"]`')
    else:
        draft.carried.append(name)
