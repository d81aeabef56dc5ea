"""Turn a function's signature into its contract; every fault of the signature in one error."""

import inspect
from collections.abc import Mapping
from typing import Any, get_args

from dagrl.data.columns import ENGINE_OUTPUTS
from dagrl.data.metrics import Metrics
from dagrl.errors import ContractError, Problem, with_article
from dagrl.graph.annotations import AnnotationError, resolve_hints
from dagrl.graph.contract import NO_EXAMPLES, Check, Examples, LossContract, NodeContract
from dagrl.graph.draft import Draft, Function, type_or_none
from dagrl.graph.flags import NodeFlags, check_examples, check_flags
from dagrl.graph.hooks import merge_hooks, prepare_hook, project_hook
from dagrl.graph.parameters import TOKEN_TYPE, loss_parameter, node_parameter
from dagrl.graph.returns import IMPORT_IT, result_of
from dagrl.graph.source import caller_location, function_location


def node_contract(function: Function, flags: NodeFlags) -> NodeContract:
    """The contract of a node function.

    Raises:
        ContractError: listing every parameter, result or flag that is no contract.
    """
    draft = Draft()
    hints = _hints(function, "node", draft)
    for position, parameter in enumerate(inspect.signature(function).parameters.values()):
        if parameter.name in hints:
            node_parameter(draft, parameter, hints[parameter.name], first=position == 0)
    result, written = result_of(draft, hints.get("return"), flags.writes, flags.rows)
    check_flags(draft, flags, written)
    draft.raise_faults(f"node `{function.__name__}`", function_location(function))
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
        needs=flags.needs or ("train" if draft.role else None),
        mutates=flags.mutates,
        split=flags.split,
        rows=flags.rows,
        alias_of=flags.alias_of,
        check=flags.check,
        before_run=flags.before_run,
        examples=dict(flags.examples),
    )


def loss_contract(
    function: Function,
    *,
    check: Check | None,
    examples: Examples = NO_EXAMPLES,
    prepare: Function | None = None,
    project: Function | None = None,
) -> LossContract:
    """The contract of a loss function and of those beside it.

    Raises:
        ContractError: listing every parameter or result that is no contract.
    """
    draft = Draft()
    hints = _hints(function, "loss", draft)
    prepared, projected = prepare_hook(draft, prepare), project_hook(draft, project)
    for parameter in inspect.signature(function).parameters.values():
        if parameter.name in hints:
            loss_parameter(draft, parameter, hints[parameter.name])
    arguments = (*(read.name for read in draft.reads), *draft.taken)
    merge_hooks(draft, {"prepare": prepared, "project": projected})
    _check_loss(draft, hints.get("return"), has_gradient=project is not None)
    check_examples(draft, examples)
    draft.raise_faults(f"loss `{function.__name__}`", function_location(function))
    return LossContract(
        name=function.__name__,
        at=function_location(function),
        doc=_first_line(function),
        reads=tuple(draft.reads),
        engine_outputs=tuple(draft.engine_outputs),
        options=tuple(draft.options),
        check=check,
        examples=dict(examples),
        arguments=arguments,
        prepare=prepared,
        project=projected,
    )


def _check_loss(draft: Draft, result: Any, *, has_gradient: bool) -> None:
    if not draft.engine_outputs and not has_gradient:
        draft.fault(
            "it reads no engine output, so it has no gradient",
            f"take one of {', '.join(f'`{name}`' for name in sorted(ENGINE_OUTPUTS))}",
        )
    returned = get_args(result)
    if len(returned) != 2 or type_or_none(returned[0]) != TOKEN_TYPE or returned[1] is not Metrics:
        draft.fault(
            "its result is not per-token losses and metrics",
            'annotate `-> tuple[Float32[Tensor, "B T"], Metrics]`',
        )


def require_parentheses(kind: str, given: Any, fix: str) -> None:
    """Refuse ``@node`` without parentheses, and what was passed to it by position.

    Raises:
        ContractError: if anything was given.
    """
    if given is None:
        return
    if inspect.isfunction(given):
        problem = Problem(f"`@{kind}` stands without parentheses.", function_location(given), fix=fix)
        raise ContractError([problem], f"{kind} `{given.__name__}`")
    what = f"`@{kind}(...)` got {given!r} by position, but all that it takes has a name."
    raise ContractError([Problem(what, caller_location(), fix=fix)], f"`@{kind}`")


def _hints(function: Function, kind: str, draft: Draft) -> Mapping[str, Any]:
    """The annotations, after what cannot be a node or loss at all was refused."""
    if not inspect.isfunction(function):
        what = f"`@{kind}(...)` stands above {with_article(type(function).__name__)}, {function!r}."
        raise ContractError([Problem(what, caller_location(), fix=f"declare a function: `def my_{kind}(...):`")])
    at, subject = function_location(function), f"{kind} `{function.__name__}`"
    if inspect.iscoroutinefunction(function) or inspect.isgeneratorfunction(function):
        draft.fault(
            "it is async or a generator, so a call returns no columns", "let a plain `def` return what it declares"
        )
    hints: Mapping[str, Any] = {}
    try:
        hints = resolve_hints(function)
    except AnnotationError as error:
        draft.fault(str(error), IMPORT_IT)
        draft.raise_faults(subject, at)
    for name in inspect.signature(function).parameters:
        if name not in hints:
            draft.fault(f"parameter `{name}` has no annotation", "annotate it: a column, a role, or an option's type")
    return hints


def _first_line(function: Function) -> str:
    return (inspect.getdoc(function) or "").split("\n", 1)[0]
