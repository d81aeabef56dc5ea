"""Bringing rollout weights up to date: inside one process set, or from one to another without passing the driver."""

from __future__ import annotations

from typing import NamedTuple

from dagrl.compiler.plan import SyncOp
from dagrl.executor.placement import Site
from dagrl.executor.process_sets import Pending, ProcessSet


class Transfer(NamedTuple):
    """A sync that runs: the processes that take part, the call it ends with, and the one that feeds that."""

    sets: tuple[ProcessSet, ...]
    taking: Pending
    giving: Pending | None = None

    def results(self) -> None:
        """Raise what the giving side raised, which the taking side would only report, or what that itself raised."""
        if self.giving is not None:
            self.giving.results()
        self.taking.results()

    @property
    def late(self) -> Pending:
        """The call to give up when the time is over: the first that has not ended."""
        if self.giving is not None and self.sets[0].first_done([self.giving], 0.0) is None:
            return self.giving
        return self.taking


def start_sync(site: Site, op: SyncOp) -> Transfer:
    """Begin a sync."""
    on, source = site.by_pool[op.pool], site.by_pool[op.source_pool or op.pool]
    if op.is_own:
        return Transfer((on,), on.call("sync_rollout", [(op.group,)] * on.size))
    if source.name == on.name:
        return Transfer((on,), on.call("sync_follower", [(op.source, op.group)] * on.size))
    giving = source.call("publish_weights", [(op.source, op.group)] * source.size)
    published = (giving.handles[0],)  # in a tuple, lest it is fetched before the call begins
    return Transfer((source, on), on.call("receive_weights", [(op.group, published)] * on.size), giving)
