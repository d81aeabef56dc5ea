"""Rollout engines that cannot be in the processes that a machine has for them."""

from collections.abc import Sequence

from dagrl.compiler.machine import Machine
from dagrl.errors import Problem
from dagrl.graph.specs import WorkerGroup


def engine_problems(rollout_groups: Sequence[WorkerGroup], machine: Machine) -> list[Problem]:
    """Second engines of vLLM on one pool of GPUs, of the groups that generate.

    On a GPU vLLM frees memory through one allocator of the process: the sleep of one engine would take the weights of
    all, and a second engine does not start.
    """
    if not machine.gpus:
        return []
    engines = [group for group in rollout_groups if group.model.rollout.engine == "vllm"]
    first = {group.pool.name: group for group in reversed(engines)}
    return [_second_engine(group, first[group.pool.name]) for group in engines if group is not first[group.pool.name]]


def _second_engine(group: WorkerGroup, first: WorkerGroup) -> Problem:
    what = (
        f"worker groups `{first.name}` and `{group.name}` both generate by vllm on pool `{group.pool.name}`, whose "
        "processes have a GPU; vLLM sleeps by process, so each can have one engine."
    )
    fix = f'give `{group.name}` a pool of its own, or generate with `rollout="hf"` in one of them'
    return Problem(what, group.at, fix=fix)
