"""Loop problems: `refill` blocks that could not be repeated, would drop nothing, or that nobody takes rows from."""

from collections.abc import Iterator
from typing import Any

from dagrl.errors import Problem
from dagrl.graph.options import type_fault
from dagrl.graph.pipeline import Call, Pipeline, Refill


def loop_problems(pipeline: Pipeline, *, is_step: bool) -> Iterator[Problem]:
    """What is wrong with the `refill` blocks of a pipeline."""
    for loop in pipeline.loops.values():
        inside = pipeline.calls_in(loop.name)
        if not is_step:
            what = f"`refill` stands in pipeline `{pipeline.name}`, which evaluates: it walks its data just once."
            yield Problem(what, loop.at, fix="take the calls out of the block, or filter without it")
        yield from _source_problems(loop, inside)
        yield from _call_problems(pipeline, loop, inside)
        if not any(call.contract.rows == "filter" for call in inside):
            what = "`refill` has no filter in its block: every group would pass in the first round."
            yield Problem(what, loop.at, fix="call one in it, such as `mixed_groups(reward)`, or drop the block")
        if inside and not _is_read(pipeline, loop):
            what = "no call below the block of `refill` takes an edge out of it, so what it draws is for nothing."
            yield Problem(what, loop.at, fix="pass edges out of the block to an update")


def _source_problems(loop: Refill, inside: tuple[Call, ...]) -> Iterator[Problem]:
    sources = [call for call in inside if call.contract.rows == "source"]
    if not sources:
        what = "`refill` has no `prompts` in its block: its rounds would have no rows."
        yield Problem(what, loop.at, fix="call `prompts` inside the block")
    for second in sources[1:]:
        what = f"`{second.name}` is a second source in the block of `refill`; the first is at {sources[0].at}."
        yield Problem(what, second.at, fix="give each its own block, or take it out")
    if len(sources) == 1:
        yield from _too_many_groups(loop, sources[0])


def _too_many_groups(loop: Refill, source: Call) -> Iterator[Problem]:
    """A number of groups that all rounds together cannot bring; values of a wrong type are another's problem."""
    size: Any = source.options.get("batch_size")
    groups, rounds = loop.groups, loop.max_rounds
    if all(type_fault(value, int) is None and value > 0 for value in (size, groups, rounds)) and groups > size * rounds:
        what = f"`refill` wants {groups} groups, and {rounds} rounds of {size} prompts have {size * rounds}."
        yield Problem(what, loop.at, fix="lower `groups`, or raise `max_rounds` or the `batch_size` of the source")


def _call_problems(pipeline: Pipeline, loop: Refill, inside: tuple[Call, ...]) -> Iterator[Problem]:
    for call in inside:
        if call.contract.mutates:
            what = f"`{call.name}` changes a model inside `refill`, whose rounds are of one model."
            yield Problem(what, call.at, fix="call it below the block")
        for outer in dict.fromkeys(edge.call for edge in call.inputs if pipeline.call(edge.call).loop != loop.name):
            what = f"`{call.name}` inside `refill` takes an edge of `{outer}`, which is not in the block."
            at = (("other", f"`{outer}` at {pipeline.call(outer).at}"),)
            yield Problem(what, call.at, at, fix=f"call `{outer}` in the block, or `{call.name}` below it")


def _is_read(pipeline: Pipeline, loop: Refill) -> bool:
    return any(
        pipeline.call(edge.call).loop == loop.name
        for call in pipeline.calls
        if call.loop != loop.name
        for edge in call.inputs
    )
