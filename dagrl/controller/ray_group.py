"""A worker group whose ranks are Ray actors on the bundles of a resource pool."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Self

import ray

from dagrl.controller.aliveness import watch
from dagrl.controller.colocated import colocated_class, create_colocated_worker_raw_cls
from dagrl.controller.failures import Seat, gone_error, remember_end, text_of
from dagrl.controller.ray_crew import CrewStart, RayClassWithInitArgs, RayCrew
from dagrl.controller.ray_pending import RayPending
from dagrl.controller.ray_pool import RayResourcePool
from dagrl.controller.ray_sending import Sending
from dagrl.controller.resource_pool import ResourcePool
from dagrl.controller.worker import Worker
from dagrl.controller.worker_group import ClassWithInitArgs, RankCall, WorkerGroup
from dagrl.errors import ClusterError, DispatchError, Problem, WorkerError

#: The steps of starting a worker, as errors name them.
_SHOWN = {"dagrl_prepare": "the start", "dagrl_construct": "__init__"}


class RayWorkerGroup(WorkerGroup):
    """One Ray actor for each process of the pool; all start at once.

    A worker that fails or is lost ends the group: the other ranks are killed at once, and later calls raise the same
    error. ``worker_env`` are environment variables of the processes. ``deadline`` bounds every blocking call, in
    seconds; ``ray_wait_register_center_timeout`` bounds the start. Workers that are ``detached`` outlive this program.
    With ``worker_handles`` or ``worker_names`` nothing is started: see `from_detached`.

    Raises:
        ClusterError: when the pool does not fit the cluster.
        WorkerEnvironmentError: naming a key of ``worker_env`` that the group sets itself.
        WorkerError: when a worker cannot be constructed.
    """

    def __init__(
        self,
        resource_pool: RayResourcePool | None = None,
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
        self._start: CrewStart | None = None
        cls = Worker if ray_cls_with_init is None else ray_cls_with_init.plain.cls
        self._crew = RayCrew(name_prefix or cls.__name__)
        if worker_names or worker_handles:
            names, handles = worker_names or [], worker_handles or []
            super().__init__(ResourcePool([max(len(names), len(handles))]), cls, self._crew.name)
            found = self._crew.attach(names, handles, self._ask, ray_wait_register_center_timeout)
            self._bind_all(found if ray_cls_with_init is None else cls)
            self.name = name_prefix or self.seats[0].group
        elif resource_pool is None or ray_cls_with_init is None:
            raise DispatchError("a worker group needs `resource_pool` and `ray_cls_with_init`, or workers that live")
        else:
            super().__init__(resource_pool, cls, self._crew.name)
            self._start = CrewStart(
                ray_cls_with_init,
                bin_pack=bin_pack,
                detached=detached,
                timeout=ray_wait_register_center_timeout,
                worker_env=worker_env or {},
                device_name=device_name,
            )
            _check_lifetimes(resource_pool, detached=detached)
            self.rebuild()
        self._deadline = deadline

    @classmethod
    def from_detached(
        cls,
        name_prefix: str | None = None,
        worker_names: list[str] | None = None,
        worker_handles: list[Any] | None = None,
        ray_cls_with_init: ClassWithInitArgs | None = None,
        **kwargs: Any,
    ) -> Self:
        """A group over living workers, by their names or handles in rank order; its class is theirs unless given.

        Raises:
            ClusterError: when there is no worker of a name.
            DispatchError: when they are not the ranks of one group.
        """
        return cls(
            ray_cls_with_init=ray_cls_with_init,
            name_prefix=name_prefix,
            worker_names=worker_names,
            worker_handles=worker_handles,
            **kwargs,
        )

    @property
    def workers(self) -> list[Any]:
        """The actors' handles in rank order."""
        return self._crew.handles

    @property
    def seats(self) -> list[Seat]:
        """Where each rank runs, in rank order."""
        return [self._crew.seats[rank] for rank in range(self.world_size)]

    @property
    def master_address(self) -> str:
        """The address of rank 0's node."""
        return self._crew.seats[0].node_ip

    @property
    def master_port(self) -> str:
        """The port that rank 0 chose for torch.distributed."""
        return str(self._crew.port)

    @property
    def worker_names(self) -> list[str]:
        """The actors' names in rank order."""
        return self._crew.names

    @property
    def ended(self) -> bool:
        """Whether the workers have been ended."""
        return self._crew.ended

    @property
    def standing(self) -> bool:
        """Whether the workers are constructed and have not been ended."""
        return self._crew.standing

    def submit(self, method: str, calls: Mapping[int, RankCall]) -> RayPending:
        """Call the method on the ranks without waiting; what several of them get is stored once.

        Raises:
            WorkerError: the one that ended the group, or one that says that `kill` did.
            DispatchError: naming the method whose arguments cannot be sent; the group is torn down if other ranks have
                been called already.
        """
        if self.failure is not None:
            raise self.failure
        if self._crew.ended:
            raise gone_error(self.seat(next(iter(calls))), method, "it was ended; `rebuild()` starts another")
        theirs = f"{self.role}_{method}" if self.role and not method.startswith("dagrl_") else method
        sending = Sending(calls)
        refs: dict[int, Any] = {}
        for rank, (args, kwargs) in calls.items():
            try:
                sent = tuple(map(sending.sent, args)), {name: sending.sent(value) for name, value in kwargs.items()}
                refs[rank] = getattr(self._crew.handles[rank], theirs).remote(*sent[0], **sent[1])
            except Exception as error:  # noqa: BLE001 - how the user's values are pickled
                said = f"`{method}` cannot be called on rank {rank}: {_first_line(error)}"
                if refs:
                    self.fail(self._not_called(method, rank, said))
                raise DispatchError(said) from (None if isinstance(error, TypeError) else error)
        return RayPending(self, _SHOWN.get(method, method), refs, self.built)

    def kill(self) -> None:
        """End the workers at once, whatever they do."""
        self._crew.kill()

    def fail(self, error: WorkerError) -> WorkerError:
        """End the group with this error, unless it has ended with another already; return the one that counts."""
        remember_end(self._crew.seats.values(), self.failure or error)
        return super().fail(error)

    def rebuild(self) -> None:
        """End the workers and start new ones in their place; what they said of meshes is forgotten.

        Raises:
            DispatchError: when this program did not start them.
        """
        if self._start is None or not isinstance(self.resource_pool, RayResourcePool):
            raise DispatchError(f"group `{self.name}` is made of workers that others started: they must start them")
        self.kill()
        self._health.failure = None
        self._health.built += 1
        try:
            self._crew.start(self.resource_pool, self._start, self._ask)
        except BaseException:
            self.kill()
            raise

    def start_worker_aliveness_check(self, every_n_seconds: float = 1) -> None:
        """Look after the workers from now on: one that is lost ends the group as if a call had found it.

        Nothing is done to this process; `failure` tells, and so does the next call.
        """
        watch(self, every_n_seconds)

    def seat(self, rank: int) -> Seat:
        """Where the rank runs; without a node while that is not known."""
        return self._crew.seats.get(rank, Seat(self.name, rank, "unknown"))

    def _ask(self, method: str, calls: Mapping[int, RankCall], seconds: float) -> list[Any]:
        return self.submit(method, calls).outputs(None, seconds)

    def _not_called(self, method: str, rank: int, said: str) -> WorkerError:
        """The error of a group some of whose ranks wait for one that was not called."""
        ip = self.seat(rank).node_ip
        return WorkerError(
            group=self.name, method=method, rank=rank, node_ip=ip, error_type="DispatchError", error_message=said
        )


def create_colocated_worker_cls(class_dict: Mapping[str, ClassWithInitArgs]) -> RayClassWithInitArgs:
    """A class `WorkerDict` for processes that hold a worker of each role; `RayWorkerGroup.spawn` gives their groups.

    Each role's methods are there as ``{role}_{method}``. Roles may have any base classes and constructors.

    Raises:
        DispatchError: when two roles' methods would have one name.
    """
    return RayClassWithInitArgs(ray.remote(colocated_class("WorkerDict", Worker, class_dict)))


def create_colocated_worker_cls_fused(class_dict: Mapping[str, ClassWithInitArgs]) -> RayClassWithInitArgs:
    """As `create_colocated_worker_cls`; the class is that of `create_colocated_worker_raw_cls`."""
    made = RayClassWithInitArgs(ray.remote(create_colocated_worker_raw_cls(class_dict)))
    made.fused_worker_used = True
    return made


def _check_lifetimes(pool: RayResourcePool, *, detached: bool) -> None:
    if detached and not pool.detached:
        what = f"the workers are to be detached, but pool `{pool.name_prefix}`, which ends with this program, is not."
        raise ClusterError([Problem(what, fix="make the pool with `detached=True` too")])


def _first_line(error: BaseException) -> str:
    said = text_of(error).strip().split("\n")[0]
    return said if isinstance(error, TypeError) else f"{type(error).__name__}: {said}"
