"""A worker group in this process: for tests, debuggers and machines without Ray."""

import asyncio
import inspect
import os
from collections.abc import Mapping
from typing import Any

from dagrl.controller.failures import Seat, fault_of, worker_error
from dagrl.controller.future import Pending
from dagrl.controller.resource_pool import ResourcePool
from dagrl.controller.worker import Identity, born_as, check_worker_env, free_port
from dagrl.controller.worker_group import ClassWithInitArgs, RankCall, WorkerGroup
from dagrl.errors import WorkerError


class _Done:
    """Outputs that are there already, or the failure that took their place."""

    def __init__(self, outputs: list[Any], failure: Exception | None) -> None:
        self._outputs = outputs
        self._failure = failure

    @property
    def refs(self) -> list[Any]:
        return self.outputs(None, None)

    def poll(self) -> bool:
        self.outputs(None, None)
        return True

    def outputs(self, timeout: float | None, deadline: float | None) -> list[Any]:
        if self._failure is not None:
            raise self._failure
        return self._outputs


class NaiveWorkerGroup(WorkerGroup):
    """One worker object in this process for each rank of the pool, called one after the other.

    Dispatch and collect are those of every worker group; a debugger stops in the workers' own code. The constructor is
    that of the group on Ray: ``worker_env`` is set in this process, and what says how processes start has no effect.
    """

    def __init__(
        self,
        resource_pool: ResourcePool,
        ray_cls_with_init: ClassWithInitArgs,
        bin_pack: bool = True,
        name_prefix: str | None = None,
        ray_wait_register_center_timeout: float = 300,
        worker_env: Mapping[str, str] | None = None,
        deadline: float | None = None,
    ) -> None:
        super().__init__(resource_pool, ray_cls_with_init.cls, name_prefix or ray_cls_with_init.cls.__name__)
        check_worker_env(worker_env or {})
        os.environ.update(worker_env or {})
        port = free_port()
        sizes = zip(resource_pool.local_rank_list(), resource_pool.local_world_size_list(), strict=True)
        identities = [
            Identity(rank, self.world_size, place, size, master_port=port) for rank, (place, size) in enumerate(sizes)
        ]
        self._workers = [self._construct(ray_cls_with_init, identity) for identity in identities]

    @property
    def workers(self) -> list[Any]:
        """The worker objects in rank order."""
        return self._workers

    def kill(self) -> None:
        """Nothing to end: the workers are objects of this process."""

    def submit(self, method: str, calls: Mapping[int, RankCall]) -> Pending:
        """Call the method on the ranks one after the other; the first failure ends the group."""
        if self._failure is not None:
            raise self._failure
        outputs: list[Any] = []
        for rank, (args, kwargs) in calls.items():
            try:
                outputs.append(_called(getattr(self._workers[rank], method), args, kwargs))
            except (Exception, SystemExit) as error:  # noqa: BLE001 - the workers' own code
                return _Done([], self.fail(self._error(error, rank, method)))
        return _Done(outputs, None)

    def _construct(self, maker: ClassWithInitArgs, identity: Identity) -> Any:
        try:
            with born_as(identity):
                return maker()
        except (Exception, SystemExit) as error:
            raise self.fail(self._error(error, identity.rank, "__init__")) from error

    def _error(self, error: BaseException, rank: int, method: str) -> WorkerError:
        failure = worker_error(fault_of(error, Seat(self.name, rank, "127.0.0.1"), method), error)
        failure.__cause__ = error
        return failure


def _called(method: Any, args: tuple[Any, ...], kwargs: Mapping[str, Any]) -> Any:
    """What the method returns, awaited if it is async."""
    result = method(*args, **kwargs)
    return asyncio.run(result) if inspect.iscoroutine(result) else result
