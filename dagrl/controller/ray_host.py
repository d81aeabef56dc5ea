"""The actor process that holds one worker: it sets up the process, constructs the worker and runs its methods.

Nothing here loads torch: the thread count must be set before.
"""

from __future__ import annotations

import asyncio
import os
import sys
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, replace
from inspect import iscoroutinefunction
from pathlib import Path
from types import FunctionType
from typing import Any

import ray
from ray import _private  # pyright: ignore[reportPrivateUsage] - what Ray put on sys.path is known there alone
from ray.cloudpickle import cloudpickle

from dagrl.controller.colocated import role_of
from dagrl.controller.decorator import registration_of
from dagrl.controller.failures import RemoteFault, Seat, announce_exits, count_oom_kills, fault_of
from dagrl.controller.future import DataProtoFuture
from dagrl.controller.ray_pending import are_there, wait_for
from dagrl.controller.received import Received, receive
from dagrl.controller.worker import Identity, born_as, free_port
from dagrl.controller.worker_group import ClassWithInitArgs, public_methods


@dataclass(frozen=True)
class Place:
    """What the controller tells a process of its rank before anything is loaded.

    ``threads`` None shares the node's cores among its workers; ``sys_path`` is the controller's.
    """

    group: str
    rank: int
    world_size: int
    local_rank: int
    local_world_size: int
    threads: str | None
    sys_path: tuple[str, ...]


class Host:
    """The process of one rank; a subclass has a method for each public one of the worker."""

    _place: Place
    _seat: Seat
    _master_port: int
    _worker: Any = None
    _methods: Mapping[str, FunctionType]

    def dagrl_prepare(self, place: Place) -> tuple[Seat, int]:
        """Set up the process; return where it is, and a free port."""
        self._place = place
        _share_path(place.sys_path)
        _limit_threads(place)
        announce_exits()
        context = ray.get_runtime_context()
        self._seat = Seat(
            group=place.group,
            rank=place.rank,
            node_ip=ray.util.get_node_ip_address(),
            node_id=context.get_node_id(),
            pid=os.getpid(),
            log=_log_file(),
            oom_kills=count_oom_kills(),
        )
        return self._seat, free_port()

    def dagrl_construct(self, maker: ClassWithInitArgs, master_addr: str, master_port: int) -> None:
        """Construct the worker, which may start torch.distributed."""
        here = self._place
        identity = Identity(
            here.rank,
            here.world_size,
            here.local_rank,
            here.local_world_size,
            self._seat.node_ip,
            master_addr,
            master_port,
        )
        self._master_port = master_port
        self._methods = public_methods(maker.cls)
        os.environ.update(identity.env())
        if master_addr.startswith("127."):
            for name in ("GLOO_SOCKET_IFNAME", "NCCL_SOCKET_IFNAME"):
                os.environ.setdefault(name, "lo0" if sys.platform == "darwin" else "lo")
        try:
            with born_as(identity):
                self._worker = maker()
        except (Exception, SystemExit) as error:  # noqa: BLE001 - the workers' own code
            raise self._fault(error, "__init__") from None

    def dagrl_introduce(self) -> tuple[Seat, int, type]:
        """Where the worker is, rank 0's port and the worker's class, for who finds it by name."""
        return self._seat, self._master_port, type(self._worker)

    def dagrl_ping(self) -> None:
        """Come back: the process lives."""

    def _run(self, method: str, args: Sequence[Any], kwargs: Mapping[str, Any]) -> Any:
        try:
            given = self._received(method, args, kwargs)
            return given.answer(getattr(self._worker, method)(*given.args, **given.kwargs))
        except (Exception, SystemExit) as error:  # noqa: BLE001 - the workers' own code
            raise self._fault(error, method) from None

    def _received(self, method: str, args: Sequence[Any], kwargs: Mapping[str, Any]) -> Received:
        return receive(args, kwargs, materialize=self._materializes(method))

    def _materializes(self, method: str) -> bool:
        registration = registration_of(self._methods[method])
        return registration is None or registration.materialize_futures

    def _fault(self, error: BaseException, method: str) -> RemoteFault:
        role, own = role_of(type(self._worker), method)
        seat = replace(self._seat, group=role) if role else self._seat
        return fault_of(error, seat, own, _pickled(error))


class AsyncHost(Host):
    """The host of a worker with async methods.

    Ray runs an actor that has any coroutine on an event loop, where a call may overtake one that came before it: so
    only these workers get it. Their other methods run in one thread beside the loop, one after the other. What waits
    for futures waits in threads of its own: in the loop or in the methods' thread it would stop the method that it
    waits for.
    """

    _thread: ThreadPoolExecutor

    async def dagrl_construct(  # pyright: ignore[reportIncompatibleMethodOverride] - Ray awaits it
        self, maker: ClassWithInitArgs, master_addr: str, master_port: int
    ) -> None:
        """Construct the worker in the thread of its methods."""
        self._thread = ThreadPoolExecutor(1)
        await self._beside(super().dagrl_construct, maker, master_addr, master_port)

    async def _run_beside(self, method: str, args: Sequence[Any], kwargs: Mapping[str, Any]) -> Any:
        if self._materializes(method):
            values = [*args, *kwargs.values()]
            shards = [shard for value in values if isinstance(value, DataProtoFuture) for shard in value.futures]
            if not are_there(shards):
                await asyncio.to_thread(wait_for, shards)
        return await self._beside(self._run, method, args, kwargs)

    async def _beside(self, function: Callable[..., Any], *args: Any) -> Any:
        return await asyncio.get_running_loop().run_in_executor(self._thread, function, *args)

    async def _run_async(self, method: str, args: Sequence[Any], kwargs: Mapping[str, Any]) -> Any:
        try:
            given = await asyncio.to_thread(self._received, method, args, kwargs)
            return given.answer(await getattr(self._worker, method)(*given.args, **given.kwargs))
        except (Exception, SystemExit) as error:  # noqa: BLE001 - the workers' own code
            raise self._fault(error, method) from None


def host_class(name: str, methods: Mapping[str, FunctionType]) -> type[Host]:
    """A host class called ``name`` with these methods, to be sent by value."""
    base = AsyncHost if any(map(iscoroutinefunction, methods.values())) else Host
    forwards: dict[str, Any] = {
        method: _forward(method) if base is Host else _forward_async(method, waits=iscoroutinefunction(function))
        for method, function in methods.items()
    }
    made: type[Any] = type(name, (base,), {"__module__": "dagrl_workers", **forwards})
    return made


def _forward(method: str) -> Any:
    def forward(self: Host, *args: Any, **kwargs: Any) -> Any:
        return self._run(method, args, kwargs)  # pyright: ignore[reportPrivateUsage]

    return forward


def _forward_async(method: str, *, waits: bool) -> Any:
    async def forward(self: AsyncHost, *args: Any, **kwargs: Any) -> Any:
        run = self._run_async if waits else self._run_beside  # pyright: ignore[reportPrivateUsage]
        return await run(method, args, kwargs)

    return forward


def _share_path(theirs: Sequence[str]) -> None:
    """Make what the controller can import importable here, and nothing of it in the place of a library.

    Ray puts the controller's working folder and script folder first; they leave unless they are the controller's own
    choice, so that a user's `random.py` is not taken for Python's.
    """
    wanted = [str(Path(entry or ".").resolve()) for entry in theirs]
    hidden = {os.getcwd(), *_ray_entries()} - set(wanted)
    kept = [entry for entry in sys.path if entry not in hidden]
    sys.path[:] = kept + [entry for entry in wanted if entry not in kept and Path(entry).exists()]


def _ray_entries() -> list[str]:
    """What Ray added to sys.path on behalf of the driver."""
    config = _private.worker.global_worker.core_worker.get_job_config()  # pyright: ignore[reportAttributeAccessIssue]
    return list(config.py_driver_sys_path)


def _limit_threads(place: Place) -> None:
    """Give each worker its share of the node's cores; what ``worker_env`` says stands."""
    threads = place.threads or str(max(1, _cores() // place.local_world_size))
    os.environ["OMP_NUM_THREADS"] = threads


def _cores() -> int:
    """The cores that this process may use."""
    return len(os.sched_getaffinity(0)) if sys.platform == "linux" else os.cpu_count() or 1


def _log_file() -> str:
    """The file that this process's stderr goes to, empty if that is none."""
    link = Path("/proc/self/fd/2")
    return os.readlink(link) if link.is_symlink() else ""


def _pickled(error: BaseException) -> bytes:
    """The error as bytes if it can be had back from them, else empty."""
    try:
        data = cloudpickle.dumps(error)
        cloudpickle.loads(data)
    except Exception:  # noqa: BLE001 - the user's own class
        return b""
    return data
