"""Problems of worker groups that generate from the weights of another: what they follow, and what they are used for."""

from collections.abc import Iterator, Sequence

from dagrl.errors import Problem
from dagrl.graph.pipeline import Call, Pipeline
from dagrl.graph.roles import Policy
from dagrl.graph.specs import WorkerGroup


def follow_problems(pipelines: Sequence[Pipeline]) -> Iterator[Problem]:
    """What is wrong with the groups that follow others, and with the calls on them."""
    calls = [call for pipeline in pipelines for call in pipeline.calls if call.group is not None]
    for group in dict.fromkeys(call.group for call in calls if call.group is not None):
        if group.follows is not None:
            yield from _group_problems(group, group.follows)
            yield from (problem for call in calls if call.group == group for problem in _use_problems(group, call))


def _group_problems(group: WorkerGroup, leader: WorkerGroup) -> Iterator[Problem]:
    what = f"worker group `{group.name}` follows `{leader.name}`"
    if leader.follows is not None:
        fix = f"follow `{leader.follows.name}`, which that one follows"
        yield Problem(f"{what}, which itself follows `{leader.follows.name}`.", group.at, fix=fix)
    elif leader.model.role is Policy and leader.model.optimizer is None:
        fix = "give that one an optimizer, or drop `follows=`: weights that do not change need not travel"
        yield Problem(f"{what}, which is frozen.", group.at, fix=fix)
    if group.model.role is not Policy or leader.model.role is not Policy:
        kinds = f"{group.model.maker}, {leader.model.maker}"
        yield Problem(f"{what}, but not both are policies ({kinds}).", group.at, fix="only a policy generates")
        return
    if group.model.optimizer is not None:
        yield Problem(f"{what}, and has an optimizer of its own.", group.model.at, fix="drop its `optimizer=`")
    if (group.model.model, group.model.from_scratch) != (leader.model.model, leader.model.from_scratch):
        facts = tuple((name, _reference(one)) for name, one in ((group.name, group), (leader.name, leader)))
        fix = "give both the same model: its weights are replaced by the followed group's"
        yield Problem(f"{what}, but holds another model.", group.at, facts, fix)


def _reference(group: WorkerGroup) -> str:
    return f"{group.model.model}{', from scratch' if group.model.from_scratch else ''}"


def _use_problems(group: WorkerGroup, call: Call) -> Iterator[Problem]:
    if call.contract.needs != "rollout":
        does = "trains" if call.contract.mutates else "reads the training weights of"
        what = f"`{call.name}` {does} `{group.name}`, which has none: it generates from those of `{group.leader.name}`."
        yield Problem(what, call.at, fix=f"pass `{group.leader.name}` to `{call.name}`")
