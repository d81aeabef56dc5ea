"""The future of a call on a worker group."""

from collections.abc import Callable, Sequence
from typing import Any, Protocol


class Pending(Protocol):
    """A call under way on some ranks: how its outputs are awaited depends on what runs the workers."""

    @property
    def refs(self) -> Sequence[Any]:
        """One reference for each called rank, in rank order."""
        ...

    def poll(self) -> bool:
        """Whether every rank has returned; raises the error of one that failed."""
        ...

    def outputs(self, timeout: float | None, deadline: float | None) -> list[Any]:
        """What the ranks returned, in rank order."""
        ...


class CallFuture:
    """The result of a call that may still run.

    ``splits`` says that each rank returned its shard of one batch, without padding.
    """

    def __init__(self, pending: Pending, collect: Callable[[list[Any]], Any], *, splits: bool = False) -> None:
        self._pending = pending
        self._collect = collect
        self._splits = splits

    @property
    def refs(self) -> list[Any]:
        """One reference for each called rank, in rank order: Ray's ObjectRefs, or in-process the outputs themselves."""
        return list(self._pending.refs)

    def poll(self) -> bool:
        """Whether every rank has returned, without waiting.

        Raises:
            WorkerError: when a rank failed, also while others still run; the group is torn down.
        """
        return self._pending.poll()

    def get(self, timeout: float | None = None, *, deadline: float | None = None) -> Any:
        """The call's result. ``timeout`` and ``deadline`` are seconds from now.

        Raises:
            WorkerError: as soon as a rank fails or is lost; the group is torn down.
            WorkerTimeoutError: after ``timeout``, which leaves the call running, or ``deadline``, which tears the
                group down.
        """
        return self._collect(self._pending.outputs(timeout, deadline))

    def shards(self, world_size: int) -> list[Any]:
        """One reference for each of ``world_size`` ranks to its part of the result; empty if it has no such parts."""
        return self.refs if self._splits and len(self.refs) == world_size else []
