"""A plan as text: ops in order, what each reads from where and writes, versions, frees, and why calls are gone."""

from collections.abc import Iterator

from dagrl.compiler.plan import FreeOp, Input, LoopOp, PhaseOp, Plan, RunOp, SyncOp
from dagrl.errors import counted

#: What a model is for, where it is no policy.
_ROLES = {"Policy": "", "Critic": "critic, ", "RewardModel": "reward model, "}
#: How the processes of a group hold its model; one process has nothing to say.
_PARALLEL = {"none": "", "replicate": ", whole in each process (replicate)", "fsdp": ", a share in each process (fsdp)"}

#: What phase ops do, and how deep an engine sleeps.
_PHASES = {
    "sleep": "sleep: the rollout engine",
    "wake_weights": "wake the weights",
    "wake_kv": "wake the KV cache",
    "offload_model": "offload: the trained weights",
    "offload_optimizer": "offload: the optimizer state",
    "onload_model": "onload: the trained weights",
    "onload_optimizer": "onload: the optimizer state",
}
_LEVELS = {1: ", its weights are kept", 2: ", its weights are dropped"}

#: What the functions over whole mini-batches cost.
_FORWARD = {
    True: "after a forward pass without gradient; none where it is one micro-batch",
    False: "without a forward pass",
}


def plan_text(plan: Plan) -> str:
    """The lines of one plan."""
    return f"{plan_head(plan)}\n\n{plan_table(plan)}"


def plan_head(plan: Plan) -> str:
    """Which pipeline it is, on which machine, and its groups."""
    return "\n".join(_head(plan))


def plan_table(plan: Plan) -> str:
    """The ops, and what was decided about calls that are gone."""
    return "\n".join([*_ops(plan), *_decisions(plan)])


def _head(plan: Plan) -> Iterator[str]:
    count = 1 if plan.machine.limit is None else sum(pool.num_processes for pool in plan.pools)
    processes = counted(count, "process", "processes")
    yield f"pipeline {plan.pipeline} on the {plan.machine.executor} executor, {processes}"
    for group in plan.groups:
        trains = "trained" if group.trains else "frozen" if group.follows is None else f"follows {group.follows}"
        kind = f"{group.model}, {_ROLES[group.role]}{group.precision}, {trains}"
        rollout = "" if group.rollout == "none" else f", rollout {group.rollout}"
        yield f"  group {group.name}: {kind}, pool {group.pool}{_PARALLEL[group.parallel]}{rollout}"


def _ops(plan: Plan) -> Iterator[str]:
    number = 0
    for op in plan.ops:
        match op:
            case RunOp():
                number += 1
                yield from _run_lines(number, op)
            case SyncOp():
                number += 1
                source = "" if op.is_own else f" from {op.source}"
                yield f"{number:>3}  sync {op.group}{source}: rollout weights become {_version(op.version)}"
            case PhaseOp():
                depth = _LEVELS[op.level] if op.action == "sleep" else ""
                yield f"       phase   {_PHASES[op.action]} of {op.group}{depth}"
            case FreeOp():
                yield f"       free    {', '.join(op.columns)}"
            case LoopOp():
                yield from _loop_lines(number + 1, op)
                number += len(op.ops)


def _loop_lines(first: int, op: LoopOp) -> Iterator[str]:
    """A head, the ops of a round, and what is left after the last one."""
    rounds = counted(op.max_rounds, "round")
    groups = counted(op.groups, "group passes", "groups pass")
    yield f"     {op.id}: rounds until {groups} {', '.join(op.filters)}, at most {rounds}  ({op.at})"
    for number, inner in enumerate(op.ops, first):
        yield from (f"  {text}" for text in _run_lines(number, inner))
    yield f"     end of {op.id}, the {counted(op.groups, 'lowest group', 'lowest groups')} that passed"
    yield f"       keeps   {', '.join(op.keeps) or 'no column'}"


def _run_lines(number: int, op: RunOp) -> Iterator[str]:
    name = op.call if op.call == op.node else f"{op.call} = {op.node}"
    where = f"  on {op.group}, {op.needs} weights {_version(op.version)}" if op.group is not None else ""
    changes = f" -> {_version(op.version + 1)}" if op.mutates and op.version is not None else ""
    yield f"{number:>3}  {name}{where}{changes}  ({op.at})"
    by_call: dict[str, list[str]] = {}
    for read in op.reads:
        by_call.setdefault(read.call, []).append(_read_text(read))
    for call, columns in by_call.items():
        yield f"       reads   {', '.join(columns)}  from {call}"
    for column, output in op.aliases.items():
        yield f"       alias   {column} = its own {output}, detached"
    if op.prepares:
        yield f"       prepare {', '.join(op.prepares)}  over each mini-batch, {_FORWARD[op.prepare_forward]}"
    if op.filters:
        yield f"       rows    of {op.source} that pass {', '.join(op.filters)}"
    if op.writes:
        yield f"       writes  {', '.join(op.writes)}"
    options = ", ".join(f"{key}={value}" for key, value in op.options.items())
    if options:
        yield f"       options {options}"


def _read_text(read: Input) -> str:
    return read.column if read.column == read.source else f"{read.source} as {read.column}"


def _version(version: int | None) -> str:
    return f"v+{version}" if version else "v"


def _decisions(plan: Plan) -> Iterator[str]:
    titles = (("pruned", plan.pruned), ("aliased", plan.aliased), ("kept", plan.kept))
    if any(reasons for _, reasons in titles):
        yield ""
    for title, reasons in titles:
        for call, reason in reasons.items():
            yield f"  {title} {call}: {reason}"
