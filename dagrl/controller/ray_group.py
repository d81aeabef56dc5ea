"""A worker group whose ranks are Ray actors on the bundles of a resource pool."""

import os
import secrets
import sys
import time
from collections.abc import Iterator, Mapping
from typing import Any

import ray
from ray.util.placement_group import PlacementGroup
from ray.util.scheduling_strategies import PlacementGroupSchedulingStrategy

from dagrl.controller.failures import Seat
from dagrl.controller.ray_host import Place, host_class
from dagrl.controller.ray_pending import RayPending
from dagrl.controller.ray_pool import RayResourcePool
from dagrl.controller.session import import_root, started_here
from dagrl.controller.worker import check_worker_env
from dagrl.controller.worker_group import ClassWithInitArgs, RankCall, WorkerGroup
from dagrl.errors import DispatchError, WorkerError

#: The steps of starting a worker, as errors name them.
_SHOWN = {"dagrl_prepare": "the start", "dagrl_construct": "__init__"}


class RayClassWithInitArgs(ClassWithInitArgs):
    """A class, plain or made by ``ray.remote``, and the arguments of its constructor, for Ray actors."""

    def __init__(self, cls: Any, *args: Any, **kwargs: Any) -> None:
        plain = cls if isinstance(cls, type) else cls.__ray_metadata__.modified_class
        super().__init__(plain, *args, **kwargs)
        self._options: dict[str, Any] = {}

    def update_options(self, options: dict[str, Any]) -> None:
        """Give the actors these options of ``ray.remote`` too."""
        self._options.update(options)

    def set_additional_resource(self, additional_resource: dict[str, float]) -> None:
        """Let every actor take these resources too."""
        self._options["resources"] = {**self._options.get("resources", {}), **additional_resource}

    @property
    def options(self) -> dict[str, Any]:
        """The options given so far."""
        return dict(self._options)


class RayWorkerGroup(WorkerGroup):
    """One Ray actor for each process of the pool; all start at once.

    A worker that fails or is lost ends the group: the other ranks are killed at once, and later calls raise the same
    error. ``worker_env`` are environment variables of the processes. ``deadline`` bounds every blocking call, in
    seconds; ``ray_wait_register_center_timeout`` bounds the start.

    Raises:
        ClusterError: when the pool does not fit the cluster.
        WorkerEnvironmentError: naming a key of ``worker_env`` that the group sets itself.
        WorkerError: when a worker cannot be constructed.
    """

    def __init__(
        self,
        resource_pool: RayResourcePool,
        ray_cls_with_init: ClassWithInitArgs,
        bin_pack: bool = True,
        name_prefix: str | None = None,
        ray_wait_register_center_timeout: float = 300,
        worker_env: Mapping[str, str] | None = None,
        deadline: float | None = None,
    ) -> None:
        cls = ray_cls_with_init.cls
        super().__init__(resource_pool, cls, name_prefix or cls.__name__)
        self._deadline = deadline
        self._pool = resource_pool
        self._start_timeout = ray_wait_register_center_timeout
        self._env = _environment(worker_env or {})
        self._handles: list[Any] = []
        self._names: list[str] = []
        self._port = 0
        self._ended = False
        self._seats: dict[int, Seat] = {}
        resource_pool.admit(self)
        try:
            self._start(ray_cls_with_init, "STRICT_PACK" if bin_pack else "PACK")
        except BaseException:
            self.kill()
            raise

    @property
    def workers(self) -> list[Any]:
        """The actors' handles in rank order."""
        return self._handles

    @property
    def seats(self) -> list[Seat]:
        """Where each rank runs, in rank order."""
        return [self._seats[rank] for rank in range(self.world_size)]

    @property
    def master_address(self) -> str:
        """The address of rank 0's node."""
        return self._seats[0].node_ip

    @property
    def master_port(self) -> str:
        """The port that rank 0 chose for torch.distributed."""
        return str(self._port)

    @property
    def worker_names(self) -> list[str]:
        """The actors' names in rank order."""
        return self._names

    @property
    def ended(self) -> bool:
        """Whether the workers have been ended."""
        return self._ended

    def submit(self, method: str, calls: Mapping[int, RankCall]) -> RayPending:
        """Call the method on the ranks without waiting.

        Raises:
            WorkerError: the one that ended the group.
            DispatchError: naming the method whose arguments cannot be sent; the group is torn down if other ranks have
                been called already.
        """
        if self._failure is not None:
            raise self._failure
        refs: dict[int, Any] = {}
        for rank, (args, kwargs) in calls.items():
            try:
                refs[rank] = getattr(self._handles[rank], method).remote(*args, **kwargs)
            except TypeError as error:
                said = f"`{method}` cannot be called on rank {rank}: {_first_line(error)}"
                if refs:
                    self.fail(self._not_called(method, rank, said))
                raise DispatchError(said) from None
        return RayPending(self, _SHOWN.get(method, method), refs)

    def kill(self) -> None:
        """End the workers at once, whatever they do."""
        self._ended = True
        for handle in self._handles:
            ray.kill(handle)

    def seat(self, rank: int) -> Seat:
        """Where the rank runs; without a node while that is not known."""
        return self._seats.get(rank, Seat(self.name, rank, "unknown"))

    def _not_called(self, method: str, rank: int, said: str) -> WorkerError:
        """The error of a group some of whose ranks wait for one that was not called."""
        ip = self.seat(rank).node_ip
        return WorkerError(
            group=self.name, method=method, rank=rank, node_ip=ip, error_type="DispatchError", error_message=said
        )

    def _start(self, maker: ClassWithInitArgs, strategy: str) -> None:
        """Start all processes at once, then construct the workers, which need rank 0's address, at once."""
        end = time.monotonic() + self._start_timeout
        groups = self._pool.get_placement_groups(strategy)
        self._create(maker, [(group, index) for group in groups for index in range(group.bundle_count)])
        prepare = {place.rank: ((place,), {}) for place in self._places()}
        answers: list[tuple[Seat, int]] = self.submit("dagrl_prepare", prepare).outputs(None, end - time.monotonic())
        self._seats = {seat.rank: seat for seat, _ in answers}
        self._port = answers[0][1]
        plain = ray.put(ClassWithInitArgs(maker.cls, *maker.args, **maker.kwargs))
        construct = {rank: ((plain, self.master_address, self._port), {}) for rank in self._seats}
        self.submit("dagrl_construct", construct).outputs(None, end - time.monotonic())

    def _create(self, maker: ClassWithInitArgs, bundles: list[tuple[PlacementGroup, int]]) -> None:
        options: dict[str, Any] = {**self._pool.share()}
        if isinstance(maker, RayClassWithInitArgs):
            options.update(maker.options)
        if self._env:
            given: dict[str, Any] = options.get("runtime_env", {})
            options["runtime_env"] = {**given, "env_vars": {**given.get("env_vars", {}), **self._env}}
        actor = ray.remote(host_class(self._cls.__name__, self._methods))
        unique = secrets.token_hex(4)
        for rank, (group, index) in enumerate(bundles):
            name = f"{self.name}_{unique}_{rank}"
            where = PlacementGroupSchedulingStrategy(group, index)
            self._handles.append(actor.options(name=name, scheduling_strategy=where, **options).remote())
            self._names.append(name)

    def _places(self) -> Iterator[Place]:
        threads = None if "OMP_NUM_THREADS" in self._env else os.environ.get("OMP_NUM_THREADS")
        sizes = zip(self._pool.local_rank_list(), self._pool.local_world_size_list(), strict=True)
        for rank, (local_rank, size) in enumerate(sizes):
            yield Place(
                group=self.name,
                rank=rank,
                world_size=self.world_size,
                local_rank=local_rank,
                local_world_size=size,
                threads=self._env.get("OMP_NUM_THREADS", threads),
                sys_path=tuple(sys.path),
            )


def _environment(worker_env: Mapping[str, str]) -> dict[str, str]:
    """The variables with which the processes start: what the user gives, and where dagrl is if Ray cannot know."""
    check_worker_env(worker_env)
    root = [] if started_here() else import_root()
    path = [*root, *filter(None, [worker_env.get("PYTHONPATH")])]
    return {**worker_env, **({"PYTHONPATH": os.pathsep.join(path)} if path else {})}


def _first_line(error: BaseException) -> str:
    return str(error).strip().split("\n")[0]
