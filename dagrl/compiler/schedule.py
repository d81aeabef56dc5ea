"""Schedule pass: ops with explicit dependencies, in program order; weight syncs and frees where they fall due."""

from collections.abc import Mapping, Sequence
from dataclasses import replace

from dagrl.compiler.alias import Aliases
from dagrl.compiler.loops import outside_readers, with_loops
from dagrl.compiler.phases import PhasedGroups, with_phases
from dagrl.compiler.place import place
from dagrl.compiler.plan import CanaryPlan, FreeOp, Input, Op, RunOp, SyncOp
from dagrl.compiler.prune import Liveness
from dagrl.compiler.rows import Rows, RowSet
from dagrl.errors import short_place
from dagrl.graph.hooks import reads_forward
from dagrl.graph.losses import LossTerms
from dagrl.graph.pipeline import Call, Origin, Refill
from dagrl.graph.specs import WorkerGroup


def schedule(
    rows: Rows,
    live: Liveness,
    aliases: Aliases,
    canaries: Mapping[str, CanaryPlan],
    rollout_groups: Sequence[WorkerGroup],
    phased: PhasedGroups,
    loops: Mapping[str, Refill],
) -> tuple[Op, ...]:
    """The ops of one step; those of each `refill` block of ``loops`` are one.

    Around a mutating call program order holds on its group: calls above it read the old weights, calls
    below it the new ones. ``rollout_groups`` generate somewhere in the run, so a mutation is followed by a sync of
    each of them that generates from these weights: the group itself, and those that follow it. The
    ``phased`` ones are in memory by turns.
    """
    ops: list[Op] = []
    pools = place(live.calls)
    latest: dict[str, _Weights] = {}
    for call in live.calls:
        weights = latest.setdefault(call.group.leader.name, _Weights()) if call.group else None
        run = _run_op(rows[call.name].read, live, aliases, call, weights, pools[call.name])
        run = replace(run, canary=canaries.get(call.name))
        ops.append(run)
        if weights is None or call.group is None:
            continue
        weights.used(call.group, run.id)
        if call.contract.mutates:
            weights.mutated(run.id)
            ops += weights.syncs([group for group in rollout_groups if group.leader == call.group], run.id)
    return _with_frees(live, with_phases(with_loops(ops, live, loops), phased))


class _Weights:
    """The weights of one group, and of those that follow it, as the schedule walks down the calls."""

    def __init__(self) -> None:
        self.version = 0
        self.changed_by: str | None = None
        #: The last sync of each group; those that read the weights as they are, and who uses a follower's copy.
        self.synced: dict[str, str] = {}
        self.readers: list[str] = []
        self.copies: dict[str, list[str]] = {}

    def used(self, group: WorkerGroup, op: str) -> None:
        """A call that the weights must not change under; a follower's has those of its last sync for itself."""
        users = self.readers if group.follows is None else self.copies.setdefault(group.name, [])
        users.append(op)

    def mutated(self, op: str) -> None:
        self.version += 1
        self.changed_by = op
        self.readers = []

    def syncs(self, groups: Sequence[WorkerGroup], changed_by: str) -> list[SyncOp]:
        """One for each of the groups, after what reads the copy that it replaces."""
        ops = [self._sync(group, changed_by) for group in groups]
        self.readers += [op.id for op in ops]
        return ops

    def _sync(self, group: WorkerGroup, changed_by: str) -> SyncOp:
        name, source = group.name, group.leader
        after = [changed_by, *self.copies.pop(name, [])]
        if group.follows is not None and name in self.synced:
            after.append(self.synced[name])
        self.synced[name] = f"sync:{name}@v+{self.version}"
        return SyncOp(
            self.synced[name],
            group.pool.name,
            name,
            self.version,
            tuple(dict.fromkeys(after)),
            source=source.name,
            source_pool=source.pool.name,
        )


def _run_op(rows: RowSet, live: Liveness, aliases: Aliases, call: Call, weights: _Weights | None, pool: str) -> RunOp:
    types = {read.name: str(read.type) for read in call.reads()}
    aliased = aliases.by_update.get(call.name, {})
    hooks = [term.contract for terms in call.loss_terms for term in terms.live if term.contract.prepare]
    reads = tuple(
        Input(column, types[column], origin.call, origin.column) for column, origin in live.reads[call.name].items()
    )
    (source,) = rows.sources
    filters = tuple(sorted(rows.filters))
    after = [*(read.call for read in reads), *filters]
    if source != call.name:
        after.append(source)
    if weights is not None:
        after += _weight_dependencies(call, weights)
    return RunOp(
        id=call.name,
        call=call.name,
        node=call.contract.name,
        pool=pool,
        group=call.group.name if call.group else None,
        needs=call.contract.needs,
        version=weights.version if weights else None,
        mutates=call.contract.mutates,
        source=source,
        filters=filters,
        reads=reads,
        writes=tuple(write.name for write in call.contract.writes if write.name in live.columns[call.name]),
        aliases=aliased,
        options={name: _shown(value) for name, value in call.options.items()},
        after=tuple(sorted(set(after))),
        at=short_place(call.at),
        prepares=tuple(contract.name for contract in hooks),
        prepare_forward=any(reads_forward(contract.prepare, aliased) for contract in hooks if contract.prepare),
    )


def _weight_dependencies(call: Call, weights: _Weights) -> list[str]:
    if call.contract.mutates:
        return [*weights.readers, *filter(None, [weights.changed_by])]
    if call.contract.needs == "rollout" and call.group is not None and call.group.name in weights.synced:
        return [weights.synced[call.group.name]]
    return [weights.changed_by] if weights.changed_by is not None else []


def _shown(value: object) -> str:
    return str(value) if isinstance(value, LossTerms) else repr(value)


def _with_frees(live: Liveness, ops: list[Op]) -> tuple[Op, ...]:
    """Insert, after the last reader of each set of columns, the op that frees them; a loop frees its own."""
    by_readers: dict[tuple[str, ...], list[str]] = {}
    for call in live.calls:
        for column in sorted(live.columns[call.name]):
            readers = outside_readers(live, Origin(call.name, column))
            by_readers.setdefault(readers, []).append(f"{call.name}.{column}")
    done: list[Op] = []
    names: set[str] = set()
    for op in ops:
        done.append(op)
        names.add(op.id)
        for readers, columns in by_readers.items():
            if op.id in readers and names.issuperset(readers):
                done.append(FreeOp(f"free:{'+'.join(readers)}", tuple(columns), readers))
    return tuple(done)
