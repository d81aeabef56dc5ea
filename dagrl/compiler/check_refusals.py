"""Refusals: what the `check=` functions of nodes and losses, and the options of loss terms, say against a call."""

from collections.abc import Iterator
from math import isfinite
from typing import Any

from dagrl.errors import Location, Problem, sentence, with_article
from dagrl.graph.checks import CallView, view
from dagrl.graph.contract import Check, Refusal
from dagrl.graph.losses import LossTerm, LossTerms
from dagrl.graph.options import type_fault
from dagrl.graph.parameters import TOKEN_UNIFORM
from dagrl.graph.pipeline import Call, Pipeline
from dagrl.graph.roles import ENGINE_OUTPUTS_OF


def refusal_problems(pipeline: Pipeline, call: Call, *, is_step: bool) -> Iterator[Problem]:
    """What the loss terms among the options, and the checks of terms and node, find wrong."""
    seen = view(call, pipeline, is_step=is_step)
    for terms in call.loss_terms:
        if not terms.live:
            what = f"`{call.name}` has the loss `{terms}`, in which every coefficient is 0."
            yield Problem(what, call.at, fix="give one term a coefficient other than 0")
        for term in terms.terms:
            yield from _term_problems(term, seen)
        yield from _foreign_outputs(call, terms)
        yield from _clashing_reads(call, terms)
    if call.contract.check is not None and _has_valid_options(call):
        yield from _refused(f"`{call.name}`", call.contract.check, seen, call.at)


def before_run_problems(pipeline: Pipeline, call: Call, *, is_step: bool) -> Iterator[Problem]:
    """What the ``before_run=`` function of the call's node finds wrong."""
    if call.contract.before_run is not None:
        seen = view(call, pipeline, is_step=is_step)
        yield from _refused(f"`{call.name}`", call.contract.before_run, seen, call.at, flag="before_run")


def _term_problems(term: LossTerm, seen: CallView) -> Iterator[Problem]:
    yield from term.problems
    if not isfinite(term.coefficient):
        what = f"loss term `{term}` has a coefficient that is no number."
        yield Problem(what, term.at, fix="give a finite one")
    if term.contract.check is not None and not term.problems and term.coefficient != 0:
        of_term = seen.with_options(term.option_values())
        yield from _refused(f"loss `{term.contract.name}`", term.contract.check, of_term, term.at)


def _foreign_outputs(call: Call, terms: LossTerms) -> Iterator[Problem]:
    """Engine outputs that a loss term reads and the model of the call's role does not give."""
    if call.contract.role is None:
        return
    role = call.contract.role.protocol
    for term in terms.live:
        for output in sorted(_outputs_read(term) - ENGINE_OUTPUTS_OF[role]):
            trained = with_article(role.__name__)
            what = f"loss term `{term}` reads `{output}`, but `{call.name}` trains {trained}, which has no such output."
            owners = [with_article(other.__name__) for other, found in ENGINE_OUTPUTS_OF.items() if output in found]
            yield Problem(what, term.at, fix=f"give it to a call that trains {' or '.join(owners)}")


def _outputs_read(term: LossTerm) -> frozenset[str]:
    """The engine outputs that a term reads, its `prepare=` and `project=` functions included."""
    hooks = [hook for hook in (term.contract.prepare, term.contract.project) if hook is not None]
    drawn = frozenset({TOKEN_UNIFORM})
    return frozenset(term.contract.engine_outputs).union(*(hook.engine_inputs for hook in hooks)) - drawn


def _clashing_reads(call: Call, terms: LossTerms) -> Iterator[Problem]:
    """A column that the node and its loss terms do not all read as the same type."""
    known = {read.name: (f"`{call.name}`", read) for read in call.contract.reads}
    for term in terms.live:
        for read in term.contract.reads:
            reader, first = known.setdefault(read.name, (f"loss term `{term}`", read))
            if first.type != read.type:
                what = f"{reader} reads `{first}`, but loss term `{term}` reads `{read}`."
                yield Problem(what, term.at, fix=f"make both read `{read.name}` as one type")


def _refused(owner: str, check: Check, seen: CallView, at: Location, *, flag: str = "check") -> Iterator[Problem]:
    """The refusals of a ``check=`` function; one that fails or returns something else is itself a problem."""
    try:
        refusals: Any = check(seen)
    except Exception as error:  # noqa: BLE001 - a user's function may raise anything, and the other problems stand
        what = f"the `{flag}=` of {owner} raised {type(error).__name__}: {error}."
        yield Problem(what, at, fix="mend it: it returns a list of refusals, empty if all is well")
        return
    if type_fault(refusals, list[Refusal]) is not None:
        what = f"the `{flag}=` of {owner} returned {refusals!r}."
        fix = "let it return a list of sentences or (sentence, fix) pairs, empty if all is well"
        yield Problem(what, at, fix=fix)
        return
    for refusal in refusals:
        what, fix = (refusal, None) if isinstance(refusal, str) else refusal
        yield Problem(sentence(f"{owner}: {what}"), at, fix=fix)


def _has_valid_options(call: Call) -> bool:
    options = call.options
    declared = call.contract.options
    return all(
        option.name in options and type_fault(options[option.name], option.annotation) is None for option in declared
    )
