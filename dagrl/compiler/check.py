"""Check pass: every fault of a pipeline that can be known before it runs, in file order."""

from collections.abc import Iterable, Iterator, Sequence

from dagrl.compiler.check_columns import column_problems
from dagrl.compiler.check_follows import follow_problems
from dagrl.compiler.check_loops import loop_problems
from dagrl.compiler.check_refusals import refusal_problems
from dagrl.compiler.check_resources import resource_problems
from dagrl.compiler.machine import LOCAL, Machine
from dagrl.compiler.rows import Rows, symbolic_rows
from dagrl.errors import Problem
from dagrl.graph.options import type_fault
from dagrl.graph.pipeline import Pipeline
from dagrl.graph.specs import WorkerGroup


def pipeline_problems(pipeline: Pipeline, rows: Rows, *, is_step: bool) -> list[Problem]:
    """What is wrong with one pipeline: what recording collected, then what the whole graph shows."""
    problems = [*_knob_problems(pipeline), *_purpose_problems(pipeline, is_step=is_step)]
    if not pipeline.calls:
        what = f"pipeline `{pipeline.name}` has no calls."
        return [*pipeline.problems, *problems, Problem(what, pipeline.at, fix="call nodes inside its `with` block")]
    problems += loop_problems(pipeline, is_step=is_step)
    return [*problems, *_call_problems(pipeline, rows, is_step=is_step), *_dead_calls(pipeline)]


def problems_so_far(pipelines: Sequence[Pipeline], machine: Machine = LOCAL) -> list[Problem]:
    """What is wrong with the pipelines of a ``build`` that failed, whatever calls it would still have made."""
    problems = [*resource_problems(worker_groups(pipelines), machine), *follow_problems(pipelines)]
    for pipeline in pipelines:
        problems += [*_knob_problems(pipeline), *_call_problems(pipeline, symbolic_rows(pipeline), is_step=False)]
        problems += _dead_calls(pipeline) if pipeline.calls and pipeline.is_complete else ()
    return in_file_order(problems)


def worker_groups(pipelines: Sequence[Pipeline]) -> list[WorkerGroup]:
    """The groups that the calls run on, each once."""
    groups = (call.group for pipeline in pipelines for call in pipeline.calls if call.group is not None)
    return list(dict.fromkeys(groups))


def in_file_order(problems: Iterable[Problem]) -> list[Problem]:
    """Each problem once, by file and line."""
    return sorted(dict.fromkeys(problems), key=_place)


def _place(problem: Problem) -> tuple[str, int]:
    return (problem.at.file, problem.at.line) if problem.at else ("", 0)


def _call_problems(pipeline: Pipeline, rows: Rows, *, is_step: bool) -> list[Problem]:
    """What is wrong with the calls by themselves and their inputs."""
    problems = [*pipeline.problems]
    for call in pipeline.calls:
        problems += column_problems(pipeline, call)
        problems += refusal_problems(pipeline, call, is_step=is_step)
    return [*problems, *_row_problems(pipeline, rows)]


def _knob_problems(pipeline: Pipeline) -> Iterator[Problem]:
    steps = pipeline.steps
    if steps is not None and (type_fault(steps, int) is not None or steps < 1):
        fix = "give a whole number of steps, at least 1; None: as many as `--steps` says"
        yield Problem(f"pipeline `{pipeline.name}` has steps={steps!r}.", pipeline.at, fix=fix)
    every = pipeline.every
    if every is not None and (type_fault(every, int) is not None or every < 1):
        fix = "give a number of steps, at least 1; None: only before the first step and after the last"
        yield Problem(f"pipeline `{pipeline.name}` has every={every!r}.", pipeline.at, fix=fix)


def _purpose_problems(pipeline: Pipeline, *, is_step: bool) -> Iterator[Problem]:
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


def _row_problems(pipeline: Pipeline, rows: Rows) -> Iterator[Problem]:
    for call in pipeline.calls:
        sources = rows[call.name].read.sources
        inherited = any(rows[edge.call].read.sources == sources for edge in call.inputs)
        if len(sources) > 1 and not inherited:
            yield Problem(
                f"`{call.name}` joins edges of different `prompts` calls, whose rows have nothing in common.",
                call.at,
                (("sources", ", ".join(f"`{name}` ({pipeline.call(name).at})" for name in sorted(sources))),),
                "let all edges descend from one `prompts` call",
            )
        elif not sources and not any(read for read in call.reads() if not read.optional):
            yield Problem(f"`{call.name}` takes no edge, so it has no rows.", call.at, fix="pass it an edge")


def _dead_calls(pipeline: Pipeline) -> Iterator[Problem]:
    for call in pipeline.calls:
        filters_a_loop = call.loop is not None and call.contract.rows == "filter"
        if not call.contract.is_root and not filters_a_loop and pipeline.graph.out_degree(call.name) == 0:
            yield Problem(
                f"nobody takes the output of `{call.name}`, and it changes nothing by itself.",
                call.at,
                fix=f"pass its output to a node that needs it, or drop the call of `{call.contract.name}`",
            )
    if not any(call.contract.is_root for call in pipeline.calls):
        what = f"pipeline `{pipeline.name}` ends in no call with an effect."
        yield Problem(what, pipeline.at, fix="end it in an update (`update_policy`) or a report (`report`)")
