"""A call under way on Ray actors: waiting for it, and telling what went wrong on which rank."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from typing import Any, Protocol

import ray
from ray import cloudpickle
from ray.exceptions import GetTimeoutError, RayActorError, RayError, RayTaskError
from ray.experimental import get_object_locations
from ray.util.scheduling_strategies import NodeAffinitySchedulingStrategy

from dagrl.controller.connection import connection
from dagrl.controller.failures import (
    Evidence,
    RemoteFault,
    Seat,
    ended_by,
    evidence,
    gone_error,
    known_seat,
    lost_error,
    named_seat,
    worker_error,
)
from dagrl.errors import DispatchError, WorkerError, WorkerTimeoutError

#: After a failure, how long to wait for the fate of other ranks: a lost process explains the errors of its peers.
_GRACE_SECONDS = 0.3
_EVIDENCE_SECONDS = 5.0
#: What a worker was doing of whose call nothing is known but the reference to its result.
_MAKING = "the call for a result"


class Owner(Protocol):
    """The worker group that a call belongs to."""

    def seat(self, rank: int) -> Seat:
        """Where the rank runs."""
        ...

    def fail(self, error: WorkerError) -> WorkerError:
        """End the group; return the error to raise."""
        ...

    @property
    def failure(self) -> WorkerError | None:
        """The error that ended the group, if it has ended."""
        ...

    @property
    def built(self) -> int:
        """How often its workers have been started."""
        ...


class RayPending:
    """The object references of one call, by rank, on the workers of the group's building ``built``.

    When the group has other workers since, the call's failure ends none of these.
    """

    def __init__(self, owner: Owner, method: str, refs: Mapping[int, Any], built: int) -> None:
        self._owner = owner
        self._method = method
        self._refs = dict(refs)
        self._built = built
        self._ray = connection()
        self._returned: set[int] = set()

    @property
    def refs(self) -> list[Any]:
        """One ObjectRef for each called rank, in rank order."""
        return list(self._refs.values())

    def poll(self, *, fetch: bool = True) -> bool:
        """Whether every rank has returned; raises the error of one that failed. ``fetch`` is as in `Pending.poll`."""
        self._check_connection()
        ranks = self._ready()
        self._returned.update(ranks)
        ready = [self._refs[rank] for rank in ranks]
        try:
            ray.get(ready if fetch else _arrived(ready))
        except RayError:
            raise self._failed() from None
        return len(self._returned) == len(self._refs)

    def outputs(self, timeout: float | None, deadline: float | None) -> list[Any]:
        """What the ranks returned, in rank order."""
        self._check_connection()
        limits = [limit for limit in (timeout, deadline) if limit is not None]
        try:
            return ray.get(self.refs, timeout=max(min(limits), 0) if limits else None)
        except GetTimeoutError:
            if timeout is not None and (deadline is None or timeout < deadline):
                raise self._late(timeout, "has not returned") from None
            assert deadline is not None
            raise self._end(self._late(deadline, "was ended: it had not returned")) from None
        except RayError:
            raise self._failed() from None

    def _check_connection(self) -> None:
        if self._ray != connection():
            raise self._gone(next(iter(self._refs)), "its Ray has ended since")

    def _ready(self) -> list[int]:
        """The ranks that have returned or failed since the last look."""
        open_refs = {ref: rank for rank, ref in self._refs.items() if rank not in self._returned}
        if not open_refs:
            return []
        ready, _ = ray.wait(list(open_refs), num_returns=len(open_refs), timeout=0, fetch_local=False)
        return [open_refs[ref] for ref in ready]

    def _failed(self) -> WorkerError:
        """End the group for the failure that explains the others, a lost process before an error, then the first."""
        if self._owner.failure is not None and not self._replaced:
            return self._owner.failure
        ray.wait(self.refs, num_returns=len(self._refs), timeout=_GRACE_SECONDS, fetch_local=False)
        self._returned.clear()
        faults = {rank: fault for rank in self._ready() if (fault := self._fault(rank)) is not None}
        lost = {rank: fault for rank, fault in faults.items() if isinstance(fault, RayActorError)}
        rank, fault = next(iter(lost.items())) if lost else min(faults.items(), key=lambda item: _when(item[1]))
        return self._end(self._error(rank, fault))

    def _end(self, error: WorkerError) -> WorkerError:
        """End the workers that were called, if they are still the group's; return the error to raise."""
        return error if self._replaced else self._owner.fail(error)

    @property
    def _replaced(self) -> bool:
        return self._owner.built != self._built

    def _gone(self, rank: int, why: str) -> WorkerError:
        """The error of a call that outlived the workers it was made on."""
        return gone_error(self._owner.seat(rank), self._method, why)

    def _fault(self, rank: int) -> RayError | None:
        try:
            ray.get(self._refs[rank])
        except RayError as error:
            return error
        return None

    def _error(self, rank: int, fault: RayError) -> WorkerError:
        cause = fault.cause if isinstance(fault, RayTaskError) else fault
        if isinstance(cause, RayActorError):
            if self._replaced:
                return self._gone(rank, "the group has been rebuilt since, and the call was not made again")
            seat = self._owner.seat(rank)
            return lost_error(_lost_seat(str(cause), seat) or seat, self._method, str(cause), _look)
        if not isinstance(fault, RayTaskError):
            return self._plain(rank, type(fault).__name__, str(fault), "")
        if isinstance(cause, RemoteFault):
            return _as_raised(cause)
        return self._plain(rank, type(cause).__name__, str(cause), re.sub(r"\x1b\[\d+m", "", str(fault)))

    def _plain(self, rank: int, error_type: str, message: str, trace: str) -> WorkerError:
        """The error for what went wrong outside the worker's own methods, such as sending a result."""
        seat = self._owner.seat(rank)
        return WorkerError(
            group=seat.group,
            method=self._method,
            rank=rank,
            node_ip=seat.node_ip,
            error_type=error_type,
            error_message=message.strip(),
            worker_traceback=trace,
        )

    def _late(self, seconds: float, said: str) -> WorkerTimeoutError:
        self._returned.clear()
        ready = self._ready()
        rank = next((rank for rank in self._refs if rank not in ready), next(iter(self._refs)))
        seat = self._owner.seat(rank)
        return WorkerTimeoutError(
            group=seat.group,
            method=self._method,
            rank=rank,
            node_ip=seat.node_ip,
            error_type="WorkerTimeoutError",
            error_message=f"{said} after {seconds:.1f} s",
        )


def fetch(values: Sequence[Any], timeout: float | None) -> list[Any]:
    """The values, those behind references fetched, in any process.

    Raises:
        WorkerError: when a worker failed to make one; what ended its group, where this process has the group.
        DispatchError: when their Ray has ended.
        TimeoutError: when one is not there in time.
    """
    refs = _refs_among(values)
    try:
        fetched = iter(ray.get(refs, timeout=timeout) if refs else [])
    except GetTimeoutError:
        raise TimeoutError(f"not every shard of a future is there after {timeout:g} s") from None
    except RayTaskError as error:
        if isinstance(error.cause, RemoteFault):
            raise _as_raised(error.cause) from None
        raise
    except RayActorError as error:
        seat = _lost_seat(str(error))
        if seat is None:
            raise
        if (cause := ended_by(seat)) is not None:
            raise cause from None
        raise lost_error(seat, _MAKING, str(error), _look) from None
    return [next(fetched) if isinstance(value, ray.ObjectRef) else value for value in values]


def are_there(values: Sequence[Any]) -> bool:
    """Whether nothing is behind a reference that is still to be made."""
    refs = _refs_among(values)
    ready, _ = ray.wait(refs, num_returns=len(refs), timeout=0, fetch_local=False) if refs else ([], [])
    return len(ready) == len(refs)


def wait_for(values: Sequence[Any]) -> None:
    """Wait until everything behind a reference is made, or will never be; nothing is fetched."""
    refs = _refs_among(values)
    ray.wait(refs, num_returns=len(refs), fetch_local=False)


def _arrived(ready: Sequence[Any]) -> list[Any]:
    """Those of the results that came to this process at once: small ones, and all errors (see `RemoteFault`)."""
    where = get_object_locations(list(ready)) if ready else {}
    return [ref for ref in ready if ref not in where or not where[ref]["node_ids"]]


def _refs_among(values: Sequence[Any]) -> list[Any]:
    refs = [value for value in values if isinstance(value, ray.ObjectRef)]
    if refs and not connection():
        raise DispatchError("the Ray that has the shards of a future has ended: `get()` it before")
    return refs


def _as_raised(fault: RemoteFault) -> WorkerError:
    return worker_error(fault, cloudpickle.loads(fault.pickled) if fault.pickled else None)


def _lost_seat(ray_says: str, own: Seat | None = None) -> Seat | None:
    """The seat of the worker that has ended, None where Ray does not say which; mostly it is ``own``.

    It is another's where a call got the result of a worker that is lost.
    """
    said = named_seat(ray_says)
    if said is None or (own is not None and own.pid in (0, said.pid)):
        return own
    return known_seat(said)


def _when(fault: RayError) -> float:
    """When a worker raised its error; late for what Ray raised."""
    cause = fault.cause if isinstance(fault, RayTaskError) else None
    return cause.when if isinstance(cause, RemoteFault) else float("inf")


def _look(seat: Seat) -> Evidence | None:
    """What the node of a lost process knows of it; None if the node does not answer."""
    if seat.node_id == ray.get_runtime_context().get_node_id():
        return evidence(seat.log)
    if not seat.node_id:
        return None
    there = NodeAffinitySchedulingStrategy(seat.node_id, soft=False)
    asked = ray.remote(num_cpus=0)(evidence).options(scheduling_strategy=there).remote(seat.log)
    try:
        return ray.get(asked, timeout=_EVIDENCE_SECONDS)
    except RayError:
        return None
