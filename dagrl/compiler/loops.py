"""Loops of the schedule: the ops of each `refill` block as one op with its own list, which later ops wait for."""

from collections.abc import Mapping, Sequence
from dataclasses import replace
from itertools import groupby

from dagrl.compiler.plan import LoopOp, Op, RunOp
from dagrl.compiler.prune import Liveness
from dagrl.errors import short_place
from dagrl.graph.pipeline import Origin, Refill


def with_loops(ops: Sequence[Op], live: Liveness, loops: Mapping[str, Refill]) -> list[Op]:
    """The ops in their order, those of a block folded into one; who waited for one of them waits for the loop."""
    loop_of = {call.name: call.loop for call in live.calls if call.loop is not None}
    folded: list[Op] = []
    for name, group in groupby(ops, key=lambda op: loop_of.get(op.id)):
        if name is None:
            folded += (_waiting(op, loop_of) for op in group)
        else:
            folded.append(_loop_op(loops[name], [op for op in group if isinstance(op, RunOp)], live, loop_of))
    return folded


def outside_readers(live: Liveness, column: Origin) -> tuple[str, ...]:
    """The calls that read a column and do not stand in a loop with the call that writes it."""
    loop_of = {call.name: call.loop for call in live.calls}
    loop = loop_of[column.call]
    return tuple(name for name in live.readers(column) if loop is None or loop_of[name] != loop)


def _waiting(op: Op, loop_of: Mapping[str, str]) -> Op:
    return replace(op, after=tuple(sorted({loop_of.get(name, name) for name in op.after})))


def _loop_op(loop: Refill, ops: Sequence[RunOp], live: Liveness, loop_of: Mapping[str, str]) -> LoopOp:
    inside = {op.id for op in ops}
    filters = [call.name for call in live.calls if call.loop == loop.name and call.contract.rows == "filter"]
    written = [Origin(op.call, column) for op in ops for column in op.writes]
    return LoopOp(
        id=loop.name,
        source=ops[0].source,
        groups=loop.groups,
        max_rounds=loop.max_rounds,
        filters=tuple(filters),
        keeps=tuple(str(column) for column in written if outside_readers(live, column)),
        ops=tuple(replace(op, after=tuple(name for name in op.after if name in inside)) for op in ops),
        after=tuple(sorted({loop_of.get(name, name) for op in ops for name in op.after} - {loop.name})),
        at=short_place(loop.at),
    )
