"""Resource problems: groups, models, optimizers and pools that are wrong by themselves or too large for the machine."""

from collections.abc import Iterator, Sequence
from dataclasses import fields
from math import inf
from typing import TYPE_CHECKING, Any, get_type_hints

from dagrl.compiler.check_models import folder_fault
from dagrl.compiler.check_servers import server_problems
from dagrl.compiler.machine import Machine
from dagrl.errors import Location, Problem, counted
from dagrl.graph.contract import Option
from dagrl.graph.models import head_fault
from dagrl.graph.options import option_problems, type_fault
from dagrl.graph.roles import Critic, Policy
from dagrl.graph.rollouts import RolloutSpec
from dagrl.graph.specs import AdamW, ModelSpec, ResourcePool, WorkerGroup

if TYPE_CHECKING:
    from _typeshed import DataclassInstance


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
        problems += _rollout_problems(group, machine)
    return problems


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
            f"resource pool `{pool.name}` needs {counted(pool.num_processes, 'process', 'processes')}, "
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
    needed = counted(total, "process", "processes")
    what = f"the resource pools need {needed} ({named}), the {machine.executor} executor has {machine.limit}."
    fix = f"ask for at most {machine.limit} in all, or put groups on one pool: they then share its processes"
    yield Problem(what, pools[-1].at, fix=fix)


def _model_problems(model: ModelSpec) -> Iterator[Problem]:
    problems = _type_problems(model.maker, model, model.at)
    if problems:
        yield from problems
        return
    if model.micro_batch_tokens < 1:
        kind = model.maker.replace("_", " ")
        what = f"the {kind} has micro_batch_tokens={model.micro_batch_tokens}."
        yield Problem(what, model.at, fix="give the tokens of a micro-batch, at least 1")
    fault = folder_fault(model)
    if fault is None and model.role is not Policy:
        fault = head_fault(model.model, new_head=model.role is Critic)
    if fault is not None:
        yield Problem(fault[0], model.at, fix=fault[1])
    if model.optimizer is not None:
        yield from _optimizer_problems(model.optimizer, model.at)


def _rollout_problems(group: WorkerGroup, machine: Machine) -> Iterator[Problem]:
    """What is wrong with the engine of a group that generates, or could."""
    rollout = group.model.rollout
    if not isinstance(rollout, RolloutSpec):  # pyright: ignore[reportUnnecessaryIsInstance]
        return  # it is among the model's fields of another type
    problems = _type_problems(rollout.engine, rollout, rollout.at)
    if problems:
        yield from problems
        return
    limits: tuple[tuple[str, bool, str], ...] = (
        ("tensor_parallel", rollout.tensor_parallel >= 1, "a number of processes, at least 1"),
        ("kv_cache_gib", 0 < rollout.kv_cache_gib < inf, "a finite number of GiB above 0"),
        ("max_model_len", rollout.max_model_len is None or rollout.max_model_len > 1, "at least 2 tokens, or None"),
    )
    faults = [(name, wanted) for name, fine, wanted in limits if not fine]
    for name, wanted in faults:
        yield Problem(f"`vllm` got {name}={getattr(rollout, name)!r}.", rollout.at, fix=f"`{name}` is {wanted}")
    if rollout.engine == "server":
        yield from server_problems(group)
    if not faults:
        yield from _uneven_engines(group, machine)


def _uneven_engines(group: WorkerGroup, machine: Machine) -> Iterator[Problem]:
    """Engines over several processes that a group does not have, or has no whole number of on each node."""
    wanted, sizes = group.model.rollout.tensor_parallel, machine.process_on_nodes_of(group.pool)
    if all(size % wanted == 0 for size in sizes):
        return
    have = " + ".join(map(str, sizes))
    what = (
        f"`vllm` got tensor_parallel={wanted}, but worker group `{group.name}` has "
        f"{counted(sum(sizes), 'process', 'processes')}{f' ({have} by node)' if len(sizes) > 1 else ''}."
    )
    fix = "give a number that divides the processes of each node, or the pool more processes"
    yield Problem(what, group.model.rollout.at, fix=fix)


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
