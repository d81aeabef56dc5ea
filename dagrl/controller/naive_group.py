"""A worker group in this process: for tests, debuggers and machines without Ray."""

import asyncio
import inspect
import os
from collections.abc import Coroutine, Mapping
from concurrent.futures import ThreadPoolExecutor
from typing import Any

from dagrl.controller.batches import own_copy
from dagrl.controller.colocated import role_of
from dagrl.controller.decorator import registration_of
from dagrl.controller.failures import Seat, fault_of, worker_error
from dagrl.controller.future import Pending
from dagrl.controller.received import receive
from dagrl.controller.resource_pool import ResourcePool
from dagrl.controller.shards import NotMade, Placed, Shard
from dagrl.controller.worker import Identity, born_as, check_worker_env, free_port
from dagrl.controller.worker_group import ClassWithInitArgs, RankCall, WorkerGroup
from dagrl.errors import DispatchError, WorkerError


class _Done:
    """Outputs that are there already, or the failure that took the place of each."""

    def __init__(self, outputs: list[Any], failure: WorkerError | None = None) -> None:
        self._outputs = outputs
        self._failure = failure

    @property
    def refs(self) -> list[Any]:
        return self._outputs

    def poll(self, *, fetch: bool = True) -> bool:
        self.outputs(None, None)
        return True

    def outputs(self, timeout: float | None, deadline: float | None) -> list[Any]:
        if self._failure is not None:
            raise self._failure
        return self._outputs


class _NotMadeError(Exception):
    """An argument is missing, because the workers that were to make it failed."""

    def __init__(self, failure: WorkerError) -> None:
        super().__init__(failure)
        self.failure = failure


class NaiveWorkerGroup(WorkerGroup):
    """One worker object in this process for each rank of the pool, called one after the other; one without a pool.

    Dispatch and collect are those of every worker group, and a worker shares no batch, tensor or array with its caller,
    as in a process of its own; a debugger stops in the workers' own code. The constructor is that of the group on Ray:
    ``worker_env`` is set in this process, and what says how processes start has no effect.
    """

    def __init__(
        self,
        resource_pool: ResourcePool | None = None,
        ray_cls_with_init: ClassWithInitArgs | None = None,
        bin_pack: bool = True,
        name_prefix: str | None = None,
        detached: bool = False,
        worker_names: list[str] | None = None,
        worker_handles: list[Any] | None = None,
        ray_wait_register_center_timeout: float = 300,
        *,
        worker_env: Mapping[str, str] | None = None,
        deadline: float | None = None,
        device_name: str = "cuda",
    ) -> None:
        if worker_names or worker_handles:
            raise DispatchError("workers in this process have no names or handles to attach to: use `RayWorkerGroup`")
        if ray_cls_with_init is None:
            raise DispatchError("a worker group needs `ray_cls_with_init`, its class and the constructor's arguments")
        cls = ray_cls_with_init.plain.cls
        pool = resource_pool or ResourcePool([1])
        super().__init__(pool, cls, name_prefix or cls.__name__)
        check_worker_env(worker_env or {})
        os.environ.update(worker_env or {})
        self._maker = ray_cls_with_init
        self._workers: list[Any] = []
        self.rebuild()

    @property
    def workers(self) -> list[Any]:
        """The worker objects in rank order."""
        return self._workers

    def kill(self) -> None:
        """Nothing to end: the workers are objects of this process."""

    def rebuild(self) -> None:
        """New workers in place of those there are; what they said of meshes is forgotten."""
        pool, port = self.resource_pool, free_port()
        self._health.failure = None
        self._health.built += 1
        sizes = zip(pool.local_rank_list(), pool.local_world_size_list(), strict=True)
        identities = [
            Identity(rank, self.world_size, place, size, master_port=port) for rank, (place, size) in enumerate(sizes)
        ]
        self._workers[:] = [self._construct(identity) for identity in identities]

    def submit(self, method: str, calls: Mapping[int, RankCall]) -> Pending:
        """Call the method on the ranks one after the other; the first failure ends the group."""
        if self.failure is not None:
            raise self.failure
        outputs: list[Any] = []
        for rank, (args, kwargs) in calls.items():
            try:
                outputs.append(self._called(rank, method, args, kwargs))
            except _NotMadeError as error:
                failure = self.fail(error.failure)
            except (Exception, SystemExit) as error:  # noqa: BLE001 - the workers' own code
                failure = self.fail(self._error(error, rank, method))
            else:
                continue
            return _Done([NotMade(failure)] * len(calls), failure)
        return _Done(outputs)

    def _called(self, rank: int, method: str, args: tuple[Any, ...], kwargs: Mapping[str, Any]) -> Any:
        """What comes back of the rank's method, awaited if it is async."""
        registration = registration_of(self._methods[method])
        materialize = registration is None or registration.materialize_futures
        try:
            given = receive(args, kwargs, materialize=materialize, own=_own)
        except WorkerError as error:
            raise _NotMadeError(error) from None
        worker = self._workers[rank]
        output = getattr(worker.fused[self.role] if self.role else worker, method)(*given.args, **given.kwargs)
        return _own(given.answer(_awaited(output) if inspect.iscoroutine(output) else output))

    def _construct(self, identity: Identity) -> Any:
        try:
            with born_as(identity):
                return self._maker()
        except (Exception, SystemExit) as error:
            raise self.fail(self._error(error, identity.rank, "__init__")) from error

    def _error(self, error: BaseException, rank: int, method: str) -> WorkerError:
        role, own = role_of(self._cls, method)
        failure = worker_error(fault_of(error, Seat(role or self.name, rank, "127.0.0.1"), own), error)
        failure.__cause__ = error
        return failure


def _own(value: Any) -> Any:
    """What arrives in another process: batches, tensors and arrays that are shared with nobody."""
    return value.copied() if isinstance(value, Shard | Placed) else own_copy(value)


def _awaited(coroutine: Coroutine[Any, Any, Any]) -> Any:
    """What the coroutine returns; beside the event loop that this thread may be running already."""
    try:
        asyncio.get_running_loop()
    except RuntimeError:
        return asyncio.run(coroutine)
    with ThreadPoolExecutor(1) as beside:
        return beside.submit(asyncio.run, coroutine).result()
