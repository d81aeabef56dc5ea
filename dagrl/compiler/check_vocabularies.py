"""Vocabulary problems: a model that reads the token ids of another, and numbers tokens otherwise."""

from collections.abc import Iterator, Sequence

from dagrl.errors import Problem
from dagrl.graph.pipeline import Call, Pipeline
from dagrl.graph.roles import Critic, Policy
from dagrl.graph.specs import WorkerGroup
from dagrl.graph.vocabularies import vocabulary_fault

#: Columns of token ids. A reward model reads none: it has text, and a tokenizer of its own.
TOKEN_COLUMNS = ("prompt_ids", "responses", "input_ids", "teacher_topk_ids")
_ROLES = (Policy, Critic)


def vocabulary_problems(pipeline: Pipeline, calls: Sequence[Call]) -> Iterator[Problem]:
    """What is wrong with the models of the calls that read tokens, each pair of worker groups once."""
    seen: set[tuple[WorkerGroup, WorkerGroup]] = set()
    for call in calls:
        if call.group is None or call.group.model.role not in _ROLES:
            continue
        for column, writer in _token_sources(pipeline, call):
            if writer == call.group or (writer, call.group) in seen:
                continue
            seen.add((writer, call.group))
            yield from _problem(call, column, writer, call.group)


def _token_sources(pipeline: Pipeline, call: Call) -> Iterator[tuple[str, WorkerGroup]]:
    """The columns of tokens that a call reads, and the groups that they are from, through calls without a model."""
    for column in TOKEN_COLUMNS:
        if not any(read.name == column for read in call.reads()):
            continue
        for origin in call.origins(column):
            writer = pipeline.call(origin.call)
            if writer.group is not None:
                yield column, writer.group
            else:
                yield from _token_sources(pipeline, writer)


def _problem(call: Call, column: str, writer: WorkerGroup, reader: WorkerGroup) -> Iterator[Problem]:
    fault = vocabulary_fault(writer.model.model, reader.model.model)
    if fault is None:
        return
    what = (
        f"`{call.name}` has `{reader.name}` (`{reader.model.model}`) read the `{column}` that `{writer.name}` "
        f"(`{writer.model.model}`) wrote, and the two do not number tokens alike: {fault}."
    )
    fix = f"give `{reader.name}` a model with the tokenizer of `{writer.model.model}`"
    if reader.model.role is Critic:
        fix += ", e.g. that model itself"
    yield Problem(what, reader.model.at, (("call", str(call.at)),), fix)
