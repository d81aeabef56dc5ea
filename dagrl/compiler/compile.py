"""Compile pipelines: check everything, then plan each."""

from collections.abc import Sequence
from typing import NamedTuple

from dagrl.compiler.alias import Aliases, alias
from dagrl.compiler.canary import canaries
from dagrl.compiler.check import in_file_order, pipeline_problems, worker_groups
from dagrl.compiler.check_engines import engine_problems
from dagrl.compiler.check_follows import follow_problems
from dagrl.compiler.check_resources import resource_problems
from dagrl.compiler.check_training import untrained_problems
from dagrl.compiler.machine import LOCAL, Machine
from dagrl.compiler.parallel import parallel_strategy
from dagrl.compiler.phases import PhasedGroups, phased_groups
from dagrl.compiler.place import place
from dagrl.compiler.plan import GroupPlan, Plan, PoolPlan
from dagrl.compiler.prune import Liveness, prune
from dagrl.compiler.rows import Rows, symbolic_rows
from dagrl.compiler.schedule import schedule
from dagrl.errors import CompileError, Problem
from dagrl.graph.pipeline import Call, Pipeline
from dagrl.graph.specs import WorkerGroup


def compile_pipelines(pipelines: Sequence[Pipeline], machine: Machine = LOCAL) -> tuple[Plan, ...]:
    """One plan for each pipeline.

    Raises:
        CompileError: listing every problem of every pipeline and of the resources they use.
    """
    rows = {pipeline: symbolic_rows(pipeline) for pipeline in pipelines}
    groups = worker_groups(pipelines)
    found = {
        pipeline: pipeline_problems(pipeline, rows[pipeline], is_step=number == 0)
        for number, pipeline in enumerate(pipelines)
    }
    problems = [problem for of_one in found.values() for problem in of_one]
    problems += [*_name_clashes(pipelines), *resource_problems(groups, machine), *follow_problems(pipelines)]
    problems += untrained_problems(pipelines, groups)
    if problems:
        faulty = dict.fromkeys(pipeline.name for pipeline in pipelines if found[pipeline])
        raise CompileError(in_file_order(problems), ",".join(faulty) or pipelines[0].name)
    lives = {pipeline: _live(pipeline, rows[pipeline]) for pipeline in pipelines}
    calls = [call for one in lives.values() for call in one.live.calls]
    rollout_groups = _rollout_groups(calls)
    if problems := engine_problems(rollout_groups, machine):
        raise CompileError(problems, pipelines[0].name)
    phased = phased_groups(calls, rollout_groups)
    return tuple(
        _plan(pipeline, rows[pipeline], lives[pipeline], machine, rollout_groups, phased) for pipeline in pipelines
    )


class _Live(NamedTuple):
    """What is left of a pipeline: without the calls that nobody reads, and then without those that an update makes."""

    pruned: Liveness
    live: Liveness
    aliases: Aliases


def _live(pipeline: Pipeline, rows: Rows) -> _Live:
    pruned = prune(pipeline, rows)
    return _Live(pruned, *alias(pipeline, rows, pruned))


def _rollout_groups(calls: Sequence[Call]) -> tuple[WorkerGroup, ...]:
    """The groups that generate in some of the run's live calls, by name."""
    found = {call.group.name: call.group for call in calls if call.group and call.contract.needs == "rollout"}
    return tuple(found[name] for name in sorted(found))


def _plan(
    pipeline: Pipeline,
    rows: Rows,
    found: _Live,
    machine: Machine,
    rollout_groups: Sequence[WorkerGroup],
    phased: PhasedGroups,
) -> Plan:
    pruned, live, aliases = found
    return Plan(
        pipeline=pipeline.name,
        machine=machine,
        pools=_pool_plans(live.calls, machine),
        groups=_group_plans(live.calls, machine, rollout_groups),
        ops=schedule(rows, live, aliases, canaries(pipeline, live), rollout_groups, phased, pipeline.loops),
        pruned=pruned.pruned,
        aliased=aliases.aliased,
        kept=aliases.kept,
    )


def _pool_plans(calls: Sequence[Call], machine: Machine) -> tuple[PoolPlan, ...]:
    """The pools that run the calls; a pipeline without a model has one of a single process."""
    known = {call.group.pool.name: machine.process_on_nodes_of(call.group.pool) for call in calls if call.group}
    names = dict.fromkeys(place(calls).values())
    return tuple(PoolPlan(name, known.get(name, (1,))) for name in names)


def _group_plans(
    calls: Sequence[Call], machine: Machine, rollout_groups: Sequence[WorkerGroup]
) -> tuple[GroupPlan, ...]:
    groups: dict[str, WorkerGroup] = {call.group.name: call.group for call in calls if call.group is not None}
    return tuple(
        GroupPlan(
            name=group.name,
            model=group.model.model,
            pool=group.pool.name,
            trains=group.model.optimizer is not None,
            precision=group.model.precision,
            parallel=parallel_strategy(group, machine),
            role=group.model.role.__name__,
            rollout=group.model.rollout.engine if group in rollout_groups else "none",
            follows=group.follows.name if group.follows is not None else None,
        )
        for group in groups.values()
    )


def _name_clashes(pipelines: Sequence[Pipeline]) -> list[Problem]:
    names = [pipeline.name for pipeline in pipelines]
    return [
        Problem(f"two pipelines are named `{pipeline.name}`.", pipeline.at, fix="give each its own name")
        for number, pipeline in enumerate(pipelines)
        if pipeline.name in names[:number]
    ]
