"""Values for the options of a node or loss: given ones, its ``examples=``, its defaults, else one of the type."""

from __future__ import annotations

import types
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import replace
from typing import Any, Literal, Union, get_args, get_origin

from dagrl.contracts.violation import Finding, RunFault
from dagrl.contracts.worker import role_group
from dagrl.graph.checks import view
from dagrl.graph.contract import REQUIRED, Contract, NodeContract, Option, Refusal, kind_of
from dagrl.graph.losses import LossTerms
from dagrl.graph.options import option_problems, type_fault
from dagrl.graph.pipeline import Call, Edge, Pipeline
from dagrl.graph.roles import Critic, Policy
from dagrl.nodes.losses import entropy_bonus, kl_loss, ppo_clip, value_clip
from dagrl.nodes.prompts import prompts

_SOURCE = "made-up rows"
_CHECK_FIX = "let it return a list of sentences or (sentence, fix) pairs, empty if all is well"
#: Options of one meaning wherever they occur.
BY_NAME: Mapping[str, Any] = {"data": "zoo:larger", "batch_size": 4, "n": 3, "max_new_tokens": 4}


def option_values(contract: Contract, given: Mapping[str, Any]) -> dict[str, Any]:
    """A value for every option.

    Raises:
        RunFault: when an option has none, or one of the wrong type.
    """
    values = {option.name: _value(option, contract, given) for option in contract.options}
    problems = option_problems(contract.name, contract.options, {**values, **given}, contract.at)
    if problems:
        raise RunFault(Finding(problems[0].what.rstrip("."), problems[0].fix or "mend examples="))
    return values


def _value(option: Option, contract: Contract, given: Mapping[str, Any]) -> Any:
    for source in (given, contract.examples):
        if option.name in source:
            return source[option.name]
    if option.default is not REQUIRED:
        return option.default
    if option.annotation is LossTerms:
        return _loss_for(contract)
    if option.name in BY_NAME:
        return BY_NAME[option.name]
    for kind, value in _BY_TYPE:
        if kind(option.annotation):
            return value(option.annotation)
    what = f"the option `{option.name}` has no default, and the suite knows no value of its type"
    raise RunFault(Finding(what, _give(contract, [option.name])))


def _loss_for(contract: Contract) -> LossTerms:
    """One of what the model behind the node gives."""
    role = contract.role.protocol if isinstance(contract, NodeContract) and contract.role is not None else Policy
    return value_clip() if role is Critic else ppo_clip() + 0.1 * kl_loss() - 0.01 * entropy_bonus()


def _is(*kinds: Any) -> Callable[[Any], bool]:
    return lambda annotation: (get_origin(annotation) or annotation) in kinds


def _is_optional(annotation: Any) -> bool:
    return get_origin(annotation) in (Union, types.UnionType) and type(None) in get_args(annotation)


_BY_TYPE: tuple[tuple[Callable[[Any], bool], Callable[[Any], Any]], ...] = (
    (_is_optional, lambda annotation: None),
    (_is(Literal), lambda annotation: get_args(annotation)[0]),
    (_is(bool), lambda annotation: False),
    (_is(int), lambda annotation: 2),
    (_is(float), lambda annotation: 0.5),
    (_is(str), lambda annotation: "text"),
    (_is(list), lambda annotation: []),
    (_is(dict, Mapping), lambda annotation: {}),
)


def first_state(contract: NodeContract) -> Any:
    """The first value of a node's state: its example, or the class without arguments.

    Raises:
        RunFault: when there is neither.
    """
    if contract.state is None or "state" in contract.examples:
        return contract.examples.get("state")
    try:
        return contract.state()
    except TypeError as error:
        what = f"its state `{contract.state.__name__}` cannot be made without arguments"
        raise RunFault(Finding(what, _give(contract, ["state"]))) from error


def require_accepted(contract: Contract, options: Mapping[str, Any], call: Call, made_up: Sequence[str]) -> None:
    """Ask the declaration's own ``check=`` about the options, some of which are made up.

    Raises:
        RunFault: when it refuses them, raises, or returns no refusals.
    """
    said = _refusals(contract, options, call)
    if said:
        what = said[0] if isinstance(said[0], str) else said[0][0]
        named = [option.name for option in contract.options if option.name in what][:1]
        raise RunFault(
            Finding(f"its own check refuses {dict(options)!r}: {what}", _give(contract, made_up or named or ["option"]))
        )


def accepts(contract: NodeContract, node: Any, options: Mapping[str, Any], without: Collection[str]) -> bool:
    """Whether the node's own check has nothing against a call that lacks the optional columns in ``without``.

    Raises:
        RunFault: when the check fails.
    """
    return not _refusals(contract, options, call_of(contract, node, options, without))


def _refusals(contract: Contract, options: Mapping[str, Any], call: Call) -> Sequence[Refusal]:
    if contract.check is None:
        return []
    try:
        seen = view(call, call.inputs[0].pipeline, is_step=True).with_options(options)
        said = contract.check(seen)
    except Exception as error:
        what = f"its check raised {type(error).__name__}: {error}"
        raise RunFault(Finding(what, _CHECK_FIX)) from error
    if type_fault(said, list[Refusal]) is not None:
        raise RunFault(Finding(f"its check returned {said!r}", _CHECK_FIX))
    return said


def _give(contract: Contract, names: Sequence[str]) -> str:
    examples = ", ".join(f'"{name}": ...' for name in names)
    return f"give values that fit in the declaration: `@{kind_of(contract)}(examples={{{examples}}})`"


def call_of(contract: NodeContract, node: Any, options: Mapping[str, Any], without: Collection[str] = ()) -> Call:
    """A call of the node as a pipeline holds it: one edge, from a ``prompts`` call, brings what it reads.

    Optional columns in ``without`` are left out.
    """
    pipeline = Pipeline("contract")
    source = Call(_SOURCE, prompts, (), None, {"data": "zoo:larger", "batch_size": 4, "n": 3}, None, contract.at, 0)
    group, state = role_group(contract), first_state(contract)
    call = Call(contract.name, node, (), group, dict(options), state, contract.at, 1)
    edge = Edge(pipeline, _SOURCE, {read.name: read.name for read in call.reads() if read.name not in without})
    call = replace(call, inputs=(edge,))
    for one in (source, call):
        pipeline.graph.add_node(one.name, call=one)
    return call
