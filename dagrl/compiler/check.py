"""Check pass: every fault of a pipeline that can be known before it runs, in file order."""

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import fields
from math import inf, isfinite
from typing import TYPE_CHECKING, Any, get_type_hints

from dagrl.compiler.machine import Machine
from dagrl.compiler.rows import symbolic_rows
from dagrl.errors import Location, Problem
from dagrl.graph.checks import CallView, view
from dagrl.graph.contract import Check, NodeContract, Option, Read
from dagrl.graph.losses import LossTerms
from dagrl.graph.models import model_fault
from dagrl.graph.node import DECLARED
from dagrl.graph.options import option_problems, type_fault
from dagrl.graph.pipeline import Call, Pipeline
from dagrl.graph.specs import AdamW, ModelSpec, ResourcePool, WorkerGroup

if TYPE_CHECKING:
    from _typeshed import DataclassInstance

#: Columns of an edge that a message lists.
_SHOWN_COLUMNS = 3
#: Dims whose size differs from step to step.
_WIDTHS = frozenset({"P", "T", "S"})


def pipeline_problems(pipeline: Pipeline) -> list[Problem]:
    """What is wrong with one pipeline: what recording collected, then what the whole graph shows."""
    problems = [*pipeline.problems, *_knob_problems(pipeline)]
    if not pipeline.calls:
        what = f"pipeline `{pipeline.name}` has no calls."
        return [*problems, Problem(what, pipeline.at, fix="call nodes inside its `with` block")]
    for call in pipeline.calls:
        problems += _column_problems(pipeline, call)
        problems += _unknown_widths(pipeline, call)
        problems += _loss_problems(pipeline, call)
        problems += _refusals(pipeline, call)
    problems += _row_problems(pipeline)
    problems += _dead_calls(pipeline)
    return problems


def purpose_problems(pipeline: Pipeline, *, is_step: bool) -> Iterator[Problem]:
    """What does not fit a pipeline's place: `build` returns the step first, evaluations after it."""
    if is_step and pipeline.every is not None:
        what = f"pipeline `{pipeline.name}` comes first, so it is the step, but has every={pipeline.every}."
        yield Problem(what, pipeline.at, fix="return the step first and evaluations after it; a step takes no `every`")
    if not is_step and pipeline.steps is not None:
        what = f"pipeline `{pipeline.name}` comes after the step, so it evaluates, but has steps={pipeline.steps}."
        yield Problem(what, pipeline.at, fix="return the step first; an evaluation takes `every`")
    for call in () if is_step else pipeline.calls:
        if call.contract.mutates:
            what = f"`{call.name}` changes a model, but pipeline `{pipeline.name}` only evaluates."
            yield Problem(what, call.at, fix="train in the step, which `build` returns first")


def in_file_order(problems: Iterable[Problem]) -> list[Problem]:
    """Each problem once, by file and line."""
    return sorted(dict.fromkeys(problems), key=_place)


def resource_problems(groups: Sequence[WorkerGroup], machine: Machine) -> list[Problem]:
    """What is wrong with the groups, their models and their pools on this machine."""
    problems = [
        *_clashing_names("worker group", groups),
        *_clashing_names("resource pool", [group.pool for group in groups]),
    ]
    pools = tuple(dict.fromkeys(group.pool for group in groups))
    of_pools = [problem for pool in pools for problem in _pool_problems(pool, machine)]
    problems += of_pools or _crowded(pools, machine)
    for group in dict.fromkeys(groups):
        problems += _model_problems(group.model)
    return problems


def _place(problem: Problem) -> tuple[str, int]:
    return (problem.at.file, problem.at.line) if problem.at else ("", 0)


def _knob_problems(pipeline: Pipeline) -> Iterator[Problem]:
    if type_fault(pipeline.steps, int | None) is not None:
        yield Problem(
            f"pipeline `{pipeline.name}` has steps={pipeline.steps!r}.", pipeline.at, fix="give a whole number of steps"
        )
    every = pipeline.every
    if every is not None and (type_fault(every, int) is not None or every < 1):
        fix = "give a number of steps, at least 1; None: only before the first step and after the last"
        yield Problem(f"pipeline `{pipeline.name}` has every={every!r}.", pipeline.at, fix=fix)


def _column_problems(pipeline: Pipeline, call: Call) -> Iterator[Problem]:
    for read in call.reads():
        origins = call.origins(read.name)
        if not origins and not read.optional:
            yield _missing(pipeline, call, read)
        elif len(origins) > 1:
            writers = ", ".join(f"`{origin.call}` ({pipeline.call(origin.call).at})" for origin in origins)
            yield Problem(
                f"`{call.name}` reads `{read.name}`, and {len(origins)} edges into it carry that column.",
                call.at,
                (("writers", writers),),
                f'narrow one with `.only(...)`, or rename: `.rename({origins[0].column}="other_name")`',
            )
        elif origins:
            written = pipeline.call(origins[0].call).column_type(origins[0].column)
            if written != read.type:
                writer = pipeline.call(origins[0].call)
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
    known = [contract.name for contract in DECLARED.values() if _writes(contract, column)]
    if known:
        return f"`{column}` is written by {_listed(known)}: call it and pass its output to `{call.name}`"
    return f'no known node writes `{column}`: write one, or rename a column with `.rename(...="{column}")`'


def _writes(contract: NodeContract, column: str) -> bool:
    return any(write.name == column for write in contract.writes)


def _listed(names: Iterable[str]) -> str:
    return " or ".join(f"`{name}`" for name in names)


def _loss_problems(pipeline: Pipeline, call: Call) -> Iterator[Problem]:
    for terms in call.loss_terms:
        for term in terms.terms:
            yield from term.problems
        if not terms.live:
            what = f"`{call.name}` has the loss `{terms}`, in which every coefficient is 0."
            yield Problem(what, call.at, fix="give one term a coefficient other than 0")
        for term in terms.live:
            if not isfinite(term.coefficient):
                yield Problem(
                    f"loss term `{term}` has a coefficient that is no number.", term.at, fix="give a finite one"
                )
            if term.contract.check is not None and not term.problems:
                seen = view(call, pipeline, term.option_values())
                yield from _refused(f"loss `{term.contract.name}`", term.contract.check, seen, term.at)
        yield from _clashing_reads(call, terms)


def _clashing_reads(call: Call, terms: LossTerms) -> Iterator[Problem]:
    """A column that the node and its loss terms do not all read as the same type."""
    known = {read.name: (f"`{call.name}`", read) for read in call.contract.reads}
    for term in terms.live:
        for read in term.contract.reads:
            reader, first = known.setdefault(read.name, (f"loss term `{term}`", read))
            if first.type != read.type:
                what = f"{reader} reads `{first}`, but loss term `{term}` reads `{read}`."
                yield Problem(what, term.at, fix=f"make both read `{read.name}` as one type")


def _refusals(pipeline: Pipeline, call: Call) -> Iterator[Problem]:
    if call.contract.check is None or not _has_valid_options(call):
        return
    yield from _refused(f"`{call.name}`", call.contract.check, view(call, pipeline), call.at)


def _refused(owner: str, check: Check, seen: CallView, at: Location) -> Iterator[Problem]:
    """The refusals of a ``check=`` function; one that fails or returns something else is itself a problem."""
    try:
        refusals: Any = check(seen)
    except Exception as error:  # noqa: BLE001 - a user's function may raise anything, and the other problems stand
        what = f"the `check=` of {owner} raised {type(error).__name__}: {error}."
        yield Problem(what, at, fix=f"mend `{check.__name__}`: it returns a list of refusals")
        return
    if type_fault(refusals, list[str]) is not None:
        what = f"the `check=` of {owner} returned {refusals!r}."
        yield Problem(what, at, fix=f"let `{check.__name__}` return a list of refusals, empty if there are none")
        return
    for refusal in refusals:
        yield Problem(f"{owner}: {refusal}.", at)


def _has_valid_options(call: Call) -> bool:
    options = call.options
    declared = call.contract.options
    return all(
        option.name in options and type_fault(options[option.name], option.annotation) is None for option in declared
    )


def _row_problems(pipeline: Pipeline) -> Iterator[Problem]:
    rows = symbolic_rows(pipeline)
    for call in pipeline.calls:
        sources = rows[call.name].read.sources
        if len(sources) > 1 and not _inherits(pipeline, call, sources):
            yield Problem(
                f"`{call.name}` joins edges of different `prompts` calls, whose rows have nothing in common.",
                call.at,
                (("sources", ", ".join(f"`{name}` ({pipeline.call(name).at})" for name in sorted(sources))),),
                "let all edges descend from one `prompts` call",
            )
        elif not sources and not any(read for read in call.reads() if not read.optional):
            yield Problem(f"`{call.name}` takes no edge, so it has no rows.", call.at, fix="pass it an edge")


def _inherits(pipeline: Pipeline, call: Call, sources: frozenset[str]) -> bool:
    """True when an input has the clash already, so that it is reported once."""
    rows = symbolic_rows(pipeline)
    return any(rows[edge.call].read.sources == sources for edge in call.inputs)


def _dead_calls(pipeline: Pipeline) -> Iterator[Problem]:
    for call in pipeline.calls:
        if not call.contract.is_root and pipeline.graph.out_degree(call.name) == 0:
            yield Problem(
                f"nobody takes the output of `{call.name}`, and it changes nothing by itself.",
                call.at,
                fix=f"pass its output to a node that needs it, or drop the call of `{call.contract.name}`",
            )
    if not any(call.contract.is_root for call in pipeline.calls):
        what = f"pipeline `{pipeline.name}` ends in no call with an effect."
        yield Problem(what, pipeline.at, fix="end it in an update (`update_policy`) or a report (`report`)")


def _clashing_names(kind: str, specs: Sequence[Any]) -> Iterator[Problem]:
    first: dict[str, Any] = {}
    for spec in dict.fromkeys(specs):
        known = first.setdefault(spec.name, spec)
        if known is not spec and known != spec:
            what = f"two different {kind}s are named `{spec.name}`; the other is at {known.at}."
            yield Problem(what, spec.at, fix="give each its own name")


def _pool_problems(pool: ResourcePool, machine: Machine) -> Iterator[Problem]:
    sizes = pool.process_on_nodes
    if not sizes or any(type_fault(size, int) is not None or size < 0 for size in sizes):
        what = f"resource pool `{pool.name}` has process_on_nodes={list(sizes)}."
        yield Problem(what, pool.at, fix="give the processes of each node, e.g. `process_on_nodes=[8, 8]`")
    elif machine.limit is None and pool.num_processes > machine.num_processes:
        what = (
            f"resource pool `{pool.name}` needs {pool.num_processes} processes, "
            f"the {machine.executor} executor has {machine.num_processes}."
        )
        yield Problem(what, pool.at, fix=f"ask for at most {machine.num_processes}, or 0 for as many as there are")


def _crowded(pools: Sequence[ResourcePool], machine: Machine) -> Iterator[Problem]:
    """Pools that do not fit beside each other: each has processes of its own."""
    needs = {pool: sum(machine.process_on_nodes_of(pool)) for pool in pools}
    total = sum(needs.values())
    if machine.limit is None or total <= machine.limit:
        return
    named = ", ".join(f"`{pool.name}` {count}" for pool, count in needs.items())
    what = f"the resource pools need {total} processes ({named}), the {machine.executor} executor has {machine.limit}."
    fix = f"ask for at most {machine.limit} in all, or put groups on one pool: they then share its processes"
    yield Problem(what, pools[-1].at, fix=fix)


def _model_problems(model: ModelSpec) -> Iterator[Problem]:
    problems = _type_problems("policy", model, model.at)
    if problems:
        yield from problems
        return
    if model.micro_batch_tokens < 1:
        what = f"the policy has micro_batch_tokens={model.micro_batch_tokens}."
        yield Problem(what, model.at, fix="give the tokens of a micro-batch, at least 1")
    fault = model_fault(model.model)
    if fault is not None:
        yield Problem(fault[0], model.at, fix=fault[1])
    if model.optimizer is not None:
        yield from _optimizer_problems(model.optimizer, model.at)


def _type_problems(owner: str, spec: "DataclassInstance", at: Location) -> list[Problem]:
    """Fields of a spec whose value is not of the declared type."""
    hints = get_type_hints(type(spec))
    names = [field.name for field in fields(spec) if field.name != "at"]
    declared = tuple(Option(name, hints[name]) for name in names)
    return option_problems(owner, declared, {name: getattr(spec, name) for name in names}, at)


def _optimizer_problems(optimizer: AdamW, at: Location) -> Iterator[Problem]:
    problems = _type_problems("adamw", optimizer, at)
    if problems:
        yield from problems
        return
    limits: tuple[tuple[str, bool, str], ...] = (
        ("lr", 0 < optimizer.lr < inf, "a finite number above 0"),
        ("warmup", optimizer.warmup >= 0, "a number of steps, 0 or more"),
        ("min_lr_ratio", 0 <= optimizer.min_lr_ratio <= 1, "between 0 and 1"),
        ("betas", all(0 <= beta < 1 for beta in optimizer.betas), "two numbers from 0 to below 1"),
        ("eps", 0 < optimizer.eps < inf, "above 0"),
        ("weight_decay", 0 <= optimizer.weight_decay < inf, "0 or more"),
        ("max_grad_norm", optimizer.max_grad_norm is None or optimizer.max_grad_norm > 0, "above 0, or None"),
    )
    for name, fine, wanted in limits:
        if not fine:
            yield Problem(f"`adamw` got {name}={getattr(optimizer, name)!r}.", at, fix=f"`{name}` is {wanted}")
