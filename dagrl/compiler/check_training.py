"""Training problems: a critic that has an optimizer, and that nothing trains."""

from collections.abc import Iterator, Sequence

from dagrl.errors import Problem
from dagrl.graph.pipeline import Pipeline
from dagrl.graph.roles import Critic
from dagrl.graph.specs import WorkerGroup


def untrained_problems(pipelines: Sequence[Pipeline], groups: Sequence[WorkerGroup]) -> Iterator[Problem]:
    """The critics with an optimizer that no call trains; nothing as long as some call could not be recorded.

    A policy may well have one: what is planned, timed or evaluated need not train it.
    """
    if any(pipeline.problems for pipeline in pipelines):
        return
    trained = {call.group for pipeline in pipelines for call in pipeline.calls if call.contract.mutates}
    for group in groups:
        if group.model.role is Critic and group.model.optimizer is not None and group not in trained:
            what = f"group `{group.name}` has an optimizer, but no call trains it."
            yield Problem(what, group.model.at, fix="pass it to `update_critic`, or drop its `optimizer=`")
