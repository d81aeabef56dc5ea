"""The futures of calls on a worker group."""

from __future__ import annotations

import sys
from collections.abc import Callable, Sequence
from dataclasses import KW_ONLY, dataclass, field
from functools import partial
from typing import TYPE_CHECKING, Any, Protocol

from dagrl.controller.batches import is_batch
from dagrl.controller.shards import Misfit, NotMade, Placed
from dagrl.errors import DispatchError

if TYPE_CHECKING:
    from dagrl.data.proto import DataProto


class Pending(Protocol):
    """A call under way on some ranks: how its outputs are awaited depends on what runs the workers."""

    @property
    def refs(self) -> Sequence[Any]:
        """One reference for each called rank, in rank order."""
        ...

    def poll(self, *, fetch: bool = True) -> bool:
        """Whether every rank has returned; raises the error of one that failed.

        Looking at what a rank returned brings it here, which is quickest where it is small; without ``fetch`` only
        errors and what is small come.
        """
        ...

    def outputs(self, timeout: float | None, deadline: float | None) -> list[Any]:
        """What the ranks returned, in rank order."""
        ...


class Chosen:
    """A call of which the outputs of some ranks alone count; the others are awaited, and may fail, as well."""

    def __init__(self, pending: Pending, ranks: Sequence[int]) -> None:
        self._pending = pending
        self._ranks = ranks

    @property
    def refs(self) -> list[Any]:
        """One reference for each rank that counts."""
        every = list(self._pending.refs)
        return [every[rank] for rank in self._ranks]

    def poll(self, *, fetch: bool = False) -> bool:
        """Whether every rank has returned; raises the error of one that failed. Shards stay where they are."""
        return self._pending.poll(fetch=fetch)

    def outputs(self, timeout: float | None, deadline: float | None) -> list[Any]:
        """What the ranks that count returned."""
        every = self._pending.outputs(timeout, deadline)
        return [every[rank] for rank in self._ranks]


class CallFuture:
    """The result of a call that may still run."""

    def __init__(self, pending: Pending, collect: Callable[[list[Any]], Any]) -> None:
        self._pending = pending
        self._collect = collect

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

    def __getstate__(self) -> Any:
        raise DispatchError("a `CallFuture` stays in the program that made the call: send what its `get()` returns")


@dataclass
class DataProtoFuture:
    """A batch whose shards workers hold or still make: it may be passed to any call, also of another group.

    ``futures`` are references to the shards, ``collect_fn`` makes the batch of them and ``dispatch_fn``, if any, takes
    a part of it. It can be sent to other processes; `get` works there too. ``even`` says that the shards have equally
    many rows and follow each other.
    """

    collect_fn: Callable[[list[Any]], Any]
    futures: list[Any]
    dispatch_fn: Callable[[Any], Any] | None = None
    _: KW_ONLY
    even: bool = False
    pending: Pending | None = field(default=None, repr=False)

    @staticmethod
    def concat(data: list[Any]) -> DataProtoFuture:
        """The future of the batches behind the references, one after the other."""
        return DataProtoFuture(join_shards, list(data))

    def chunk(self, chunks: int) -> list[DataProtoFuture]:
        """The futures of exactly ``chunks`` parts; the first ones are a row longer where the rows do not divide."""
        take = [partial(_chunk_of, self.dispatch_fn, part, chunks) for part in range(chunks)]
        return [DataProtoFuture(self.collect_fn, self.futures, each, pending=self.pending) for each in take]

    def poll(self) -> bool:
        """Whether every shard is there, without waiting.

        Raises:
            WorkerError: when a rank failed, also while others still run; the group is torn down.
        """
        return _all_there(self.futures) if self.pending is None else self.pending.poll()

    def get(self, timeout: float | None = None, *, deadline: float | None = None) -> Any:
        """The batch; ``timeout`` and ``deadline`` are as in `CallFuture.get`.

        Raises:
            WorkerError: when a worker that was to make a shard failed or is lost.
            TimeoutError: when it takes longer.
        """
        limits = [limit for limit in (timeout, deadline) if limit is not None]
        if self.pending is not None:
            shards = self.pending.outputs(timeout, deadline)
        else:
            shards = _values(self.futures, min(limits) if limits else None)
        whole = self.collect_fn(shards)
        return whole if self.dispatch_fn is None else self.dispatch_fn(whole)

    def __getstate__(self) -> dict[str, Any]:
        return {**vars(self), "pending": None}


def join_shards(outputs: Sequence[Any]) -> Any:
    """The batches that ranks returned as one, in the order of what was split; None if all returned None.

    Raises:
        DispatchError: when a rank returned anything else.
    """
    if all(output is None for output in outputs):
        return None
    for rank, output in enumerate(outputs):
        if isinstance(output, Misfit):
            raise DispatchError(f"rank {rank} {output.wrong}")
        if not isinstance(output, Placed) and not is_batch(output):
            raise DispatchError(
                f"rank {rank} returned a `{type(output).__name__}`, but this dispatch mode concatenates batches: "
                "return a DataProto, or use a mode that returns a list, such as `Dispatch.DP_COMPUTE_METRIC`"
            )
    places = [output.places for output in outputs if isinstance(output, Placed)]
    joined = _concat([output.batch if isinstance(output, Placed) else output for output in outputs])
    return _in_order(joined, places) if places else joined


def _concat(batches: Sequence[Any]) -> Any:
    from dagrl.data.proto import DataProto

    protos = [batch if isinstance(batch, DataProto) else DataProto.from_tensordict(batch) for batch in batches]
    joined = DataProto.concat(protos)
    return joined if any(isinstance(batch, DataProto) for batch in batches) else joined.to_tensordict()


def _in_order(joined: Any, places: Sequence[Any]) -> Any:
    """The rows by their places; those of one place stay in their order."""
    import numpy as np
    import torch

    from dagrl.data.proto import DataProto

    order = torch.from_numpy(np.argsort(np.concatenate(places), kind="stable"))
    if isinstance(joined, DataProto):
        return joined.select_idxs(order)
    return DataProto.from_tensordict(joined).select_idxs(order).to_tensordict()


def _chunk_of(before: Callable[[Any], DataProto] | None, part: int, chunks: int, whole: Any) -> Any:
    from dagrl.data.proto import DataProto

    whole = whole if before is None else before(whole)
    if isinstance(whole, DataProto):
        return whole.chunk(chunks, uneven=True)[part]
    return DataProto.from_tensordict(whole).chunk(chunks, uneven=True)[part].to_tensordict()


def _values(futures: Sequence[Any], timeout: float | None) -> list[Any]:
    """What is behind references; in one process they are the values themselves, or the failure in their place."""
    missing = next((value for value in futures if isinstance(value, NotMade)), None)
    if missing is not None:
        raise missing.failure
    if "ray" not in sys.modules:
        return list(futures)
    from dagrl.controller.ray_pending import fetch

    return fetch(futures, timeout)


def _all_there(futures: Sequence[Any]) -> bool:
    if "ray" not in sys.modules:
        return True
    from dagrl.controller.ray_pending import are_there

    return are_there(futures)
