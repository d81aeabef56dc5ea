"""Process sets: the processes that share a pool and run an op together, behind one interface.

The walk through a plan sees only this: here the set is this very process, in ``ray.py`` a group of actors.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, NamedTuple, Protocol

from dagrl.controller.future import CallFuture
from dagrl.controller.naive_group import NaiveWorkerGroup
from dagrl.errors import DagrlError, WorkerError
from dagrl.workers.host import NodeHost


class RankProgress(NamedTuple):
    """How far a rank is in an op: ``done`` of ``total`` of its ``unit``."""

    pipeline: str
    step: int
    op: str
    rank: int
    done: int
    total: int
    unit: str


class Pending(Protocol):
    """A method that was called on the ranks of a set."""

    def results(self) -> list[Any]:
        """What each rank returned; raises what the first failing rank raised."""
        ...

    @property
    def handles(self) -> Sequence[Any]:
        """For each rank, a stand-in for its result that may be passed to other calls."""
        ...

    def expire(self, seconds: float) -> DagrlError:
        """Give the call up, since it has run for that long; the error that says which rank is late."""
        ...


class ProcessSet(Protocol):
    """Ranks that are called together; calls on one set run in the order in which they were made."""

    @property
    def name(self) -> str:
        """Unique in a run."""
        ...

    @property
    def size(self) -> int:
        """Its ranks."""
        ...

    def call(self, method: str, arguments: Sequence[Sequence[Any]]) -> Pending:
        """Call a method of every rank's `NodeHost` with that rank's arguments."""
        ...

    def first_done(self, pending: Sequence[Pending], seconds: float) -> Pending | None:
        """One of the calls that is done, of this set or of another of its kind; None when the time is over."""
        ...

    def progress(self) -> Sequence[RankProgress]:
        """What ranks have last said of how far they are, as far as it is not told otherwise."""
        ...

    def close(self) -> None:
        """End the processes."""
        ...


class Done:
    """A call that is over."""

    def __init__(self, future: CallFuture) -> None:
        self._future = future

    @property
    def handles(self) -> Sequence[Any]:
        """What each rank returned, or the error raised."""
        return self.results()

    def expire(self, seconds: float) -> DagrlError:
        """Never asked for."""
        return DagrlError(f"a call that is over has run for {seconds:g} s")

    def results(self) -> list[Any]:
        """What each rank returned; the error raised, as it was raised."""
        try:
            return self._future.get()
        except WorkerError as error:
            failure = error
        raise failure.original or failure


class InProcessSet:
    """Ranks in this process, called one after the other: one, or several that use no collectives."""

    def __init__(self, group: NaiveWorkerGroup) -> None:
        self.group = group

    @property
    def name(self) -> str:
        """Unique in a run."""
        return self.group.name

    @property
    def hosts(self) -> Sequence[NodeHost]:
        """Its ranks' hosts."""
        return self.group.workers

    @property
    def size(self) -> int:
        """Its ranks."""
        return self.group.world_size

    def call(self, method: str, arguments: Sequence[Sequence[Any]]) -> Done:
        """Run the method on every rank now."""
        by_place = [list(values) for values in zip(*arguments, strict=True)]
        return Done(getattr(self.group, method)(*by_place))

    def first_done(self, pending: Sequence[Pending], seconds: float) -> Pending | None:
        """The first: every call is over when it returns."""
        del seconds
        return pending[0] if pending else None

    def progress(self) -> Sequence[RankProgress]:
        """None: a call is over when it returns, and hosts in this process tell the executor themselves."""
        return ()

    def close(self) -> None:
        """End what the nodes have started."""
        for host in self.hosts:
            host.close()
