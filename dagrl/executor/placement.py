"""Where the rows of one walk lie, and what other processes must publish before an op can run."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence, Set
from dataclasses import dataclass
from typing import Any

import torch
from jaxtyping import Int64
from torch import Tensor

from dagrl.compiler.plan import LoopOp, RunOp
from dagrl.executor.layout import Layout, SourceRows, balanced, joined, moves, narrowed, on_first_rank
from dagrl.executor.process_sets import Pending, ProcessSet
from dagrl.graph.pipeline import Call
from dagrl.ops.minibatches import mini_batches
from dagrl.ops.random import hash_ids, key_of
from dagrl.workers.deployment import Planned
from dagrl.workers.host import source_rows
from dagrl.workers.node_task import NodeReport

#: For each rank, the handles of the shards it is sent, by the call that wrote them.
Arrivals = list[dict[str, list[Any]]]


@dataclass(frozen=True)
class Site:
    """Where plans run: the process set of each pool, the seed of the run, and the seconds that an op may take."""

    by_pool: Mapping[str, ProcessSet]
    seed: int
    deadline: float

    @property
    def sets(self) -> tuple[ProcessSet, ...]:
        """Every process set once."""
        return tuple({on.name: on for on in self.by_pool.values()}.values())

    def named(self, name: str) -> ProcessSet:
        """The process set of that name."""
        return next(on for on in self.sets if on.name == name)


class Placement:
    """Follows the rows of a walk; it knows their ids, never a column.

    Ids are unique in a run. So what the calls of a loop have written, which rows passed and how many tokens they have
    just adds up from round to round; only the home of a round's rows is its own.
    """

    def __init__(self, site: Site, planned: Planned, step: int, sources: Mapping[str, SourceRows]) -> None:
        self._site, self._planned, self._step = site, planned, step
        #: The rows of each source: of a loop's those of its round, after it those of all its rounds.
        self._sources: dict[str, tuple[SourceRows, ...]] = {name: (rows,) for name, rows in sources.items()}
        self._rounds: dict[str, tuple[SourceRows, ...]] = {}
        self._homes: dict[tuple[str, str], Layout] = {}
        self._written: dict[str, Layout] = {}
        self._kept: dict[str, Int64[Tensor, " K"]] = {}
        self._num_tokens: dict[str, list[tuple[Int64[Tensor, " N"], Int64[Tensor, " N"]]]] = {}
        self._ahead: dict[tuple[str, str], Arrivals] = {}
        #: The bytes of row ids that processes were asked to publish.
        self.asked_bytes = 0

    def group_size(self, op: RunOp) -> int:
        """Rows for each prompt of the op's source."""
        return self._planned.pipeline.call(op.source).options["n"]

    def round_of(self, source: str) -> SourceRows:
        """What a source reads now."""
        return self._sources[source][-1]

    def layout_of(self, op: RunOp, call: Call, on: ProcessSet) -> Layout:
        """The rows that the op sees, by rank."""
        layout = narrowed(self._home(op, on), [self._kept[name] for name in op.filters])
        if on.size == 1:
            return layout
        match call.contract.split:
            case "batch":
                return on_first_rank(layout)
            case "minibatch":
                return self._balanced(op, call, layout)
            case _:
                return layout

    def is_in_place(self, op: RunOp, layout: Layout) -> bool:
        """Whether every rank can tell the op's rows from the source and the filters it holds itself."""
        calls = [self._planned.pipeline.call(name) for name in op.filters if name not in self._planned.pipeline.loops]
        if any(call.contract.split == "batch" for call in calls):
            return len(layout.rows) == 1  # such a filter has run on the first rank alone
        return all(self._written[name].where == layout.where for name in (op.source, *op.filters))

    def send(self, op: RunOp, want: Layout) -> Arrivals:
        """The shards that each rank is sent: rows that the op reads and that lie on other ranks."""
        arrivals: Arrivals = [{} for _ in want.rows]
        for name in dict.fromkeys(read.call for read in op.reads):
            shards = self._ahead.get((name, want.where)) if self._is_at_home(op) else None
            for rank, found in enumerate(self._publish(name, _columns([op], name), want) if shards is None else shards):
                arrivals[rank] |= found
        return arrivals

    def send_ahead(self, op: RunOp) -> None:
        """Have what an op has written published at once for its readers on other process sets.

        Asked for later, its processes may be busy with an op that the readers need not wait for. In a loop those are
        its readers in the same round.
        """
        loop = self._loop(op.call)
        self._send_ahead(op.call, [reader for reader in self._planned.plan.runs if self._loop(reader.call) == loop])

    def _send_ahead(self, call: str, readers: Iterable[RunOp]) -> None:
        here = self._written[call].where
        by_set: dict[str, list[RunOp]] = {}
        for reader in readers:
            on = self._site.by_pool[reader.pool].name
            if on != here and self._is_at_home(reader) and _columns([reader], call):
                by_set.setdefault(on, []).append(reader)
        for where, ops in by_set.items():
            home = self._home(ops[0], self._site.named(where))
            self._ahead[call, where] = self._publish(call, _columns(ops, call), home)

    def begin_round(self, loop: LoopOp, rows: SourceRows) -> None:
        """Take note of the next rows of a loop's source."""
        self._rounds[loop.source] = (*self._rounds.get(loop.source, ()), rows)
        self._read(loop.source, (rows,))

    def end_round(self, loop: LoopOp) -> tuple[Int64[Tensor, " K"], list[tuple[ProcessSet, Pending]]]:
        """Have the processes keep what has passed in a round; the rows of all rounds that have, and those calls."""
        passed = self._kept[loop.filters[0]]
        for name in loop.filters[1:]:
            passed = passed[torch.isin(passed, self._kept[name])]
        now = source_rows(self._sources[loop.source][-1].group_ids, self.group_size(loop.ops[0])).row_ids
        return passed, self._tell_holders("end_round", loop, passed[torch.isin(passed, now)])

    def end_loop(self, loop: LoopOp, kept: Int64[Tensor, " K"]) -> list[tuple[ProcessSet, Pending]]:
        """Have these rows of all rounds stand as what the calls of a loop have written."""
        pending = self._tell_holders("end_loop", loop, kept)
        self._read(loop.source, self._rounds.pop(loop.source))
        self._kept[loop.id] = kept
        calls = [op.call for op in loop.ops if op.call in self._written]
        self._written |= {call: narrowed(self._written[call], [kept]) for call in calls}
        self._written[loop.id] = self._written[loop.source]
        for call in calls:
            self._send_ahead(call, [op for op in self._planned.plan.runs if self._loop(op.call) != loop.id])
        return pending

    def _tell_holders(self, method: str, loop: LoopOp, ids: Int64[Tensor, " K"]) -> list[tuple[ProcessSet, Pending]]:
        holders = {on.name: on for op in loop.ops if (on := self.holder(op.call)) is not None}
        name = self._planned.pipeline.name
        return [(on, on.call(method, [(name, loop.id, ids)] * on.size)) for on in holders.values()]

    def _read(self, source: str, rows: tuple[SourceRows, ...]) -> None:
        self._sources[source] = rows
        self._homes = {key: home for key, home in self._homes.items() if key[0] != source}

    def _loop(self, call: str) -> str | None:
        return self._planned.pipeline.call(call).loop

    def forget(self, done: Set[str]) -> None:
        """Let go of published shards whose readers are all done."""
        for name, where in list(self._ahead):
            readers = [op for op in self._planned.plan.runs if _columns([op], name)]
            if all(op.id in done for op in readers if self._site.by_pool[op.pool].name == where):
                del self._ahead[name, where]

    def _publish(self, name: str, columns: Sequence[str], want: Layout) -> Arrivals:
        arrivals: Arrivals = [{} for _ in want.rows]
        sent = moves(self._written[name], want)
        if sent is None:
            return arrivals
        on = self._site.named(self._written[name].where)
        handles = on.call("publish", [(self._planned.pipeline.name, name, columns, ids) for ids in sent]).handles
        for handle, parts in zip(handles, sent, strict=True):
            for rank, ids in enumerate(parts):
                if ids is not None:
                    self.asked_bytes += ids.nbytes
                    arrivals[rank].setdefault(name, []).append((handle, rank))
        return arrivals

    def _is_at_home(self, op: RunOp) -> bool:
        """Whether the op sees rows where they lie by themselves, and not spread anew."""
        return self._planned.pipeline.call(op.call).contract.split not in ("batch", "minibatch")

    def wrote(self, op: RunOp, layout: Layout, reports: Sequence[NodeReport | None]) -> None:
        """Take note of what an op has left."""
        done = [report for report in reports if report is not None]
        kept = [report.kept for report in done if report.kept is not None]
        before = self._written.get(op.call)
        counts = [report.num_tokens for report in done if report.num_tokens is not None]
        if counts:
            self._num_tokens.setdefault(op.call, []).append((torch.cat(layout.rows), torch.cat(counts).long()))
        if kept:
            self._kept[op.call] = torch.cat([*kept] if before is None else [self._kept[op.call], *kept])
            layout = narrowed(layout, [self._kept[op.call]])
        self._written[op.call] = layout if before is None else joined(before, layout)

    def holder(self, call: str) -> ProcessSet | None:
        """The processes that hold what a call has written, None if it never ran."""
        return self._site.named(self._written[call].where) if call in self._written else None

    def _home(self, op: RunOp, on: ProcessSet) -> Layout:
        """How the rows of a source lie on a process set when nothing speaks against it: by whole groups, in order."""
        if (op.source, on.name) not in self._homes:
            n = self.group_size(op)
            rounds = [rows.split(on.size) for rows in self._sources[op.source]]
            ids = [
                [source_rows(part.group_ids, n).row_ids for part in of_rank] for of_rank in zip(*rounds, strict=True)
            ]
            self._homes[op.source, on.name] = Layout(on.name, tuple(torch.cat(of_rank) for of_rank in ids))
        return self._homes[op.source, on.name]

    def _balanced(self, op: RunOp, call: Call, layout: Layout) -> Layout:
        counted = next((read.call for read in op.reads if read.call in self._num_tokens), None)
        if counted is None:
            return layout
        ids = torch.cat(layout.rows)
        rows, counts = (torch.cat(parts) for parts in zip(*self._num_tokens[counted], strict=True))
        have, order = rows.sort()
        weights = counts[order[torch.searchsorted(have, ids)]]
        # the seeds that a worker gives these rows, by which it draws its mini-batches
        seeds = hash_ids(key_of(self._site.seed, self._planned.pipeline.name, self._step, op.call), ids)
        return balanced(layout, weights, mini_batches(seeds, call.options.get("mini_batch_size", 0)))


def _columns(readers: Sequence[RunOp], call: str) -> tuple[str, ...]:
    """The columns of a call that some ops read."""
    return tuple(dict.fromkeys(read.source for op in readers for read in op.reads if read.call == call))
