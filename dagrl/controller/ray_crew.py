"""The Ray actors of a worker group: started on a pool's bundles or found by name, and ended."""

from __future__ import annotations

import os
import secrets
import sys
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any

import ray
from ray.util.scheduling_strategies import PlacementGroupSchedulingStrategy

from dagrl.controller.connection import connection
from dagrl.controller.failures import Seat, remember
from dagrl.controller.ray_host import Place, host_class
from dagrl.controller.ray_pool import Bundle, RayResourcePool
from dagrl.controller.session import import_root, started_here
from dagrl.controller.worker import check_worker_env
from dagrl.controller.worker_group import ClassWithInitArgs, RankCall, public_methods
from dagrl.errors import ClusterError, DispatchError, Problem

#: The namespace of all workers' names, so that other programs on the cluster find those that are detached.
NAMESPACE = "dagrl"

#: Calls a method on ranks and waits for what they return; the last argument bounds it in seconds.
Ask = Callable[[str, Mapping[int, RankCall], float], list[Any]]


class RayClassWithInitArgs(ClassWithInitArgs):
    """A class, plain or made by ``ray.remote``, and the arguments of its constructor, for Ray actors."""

    def __init__(self, cls: Any, *args: Any, **kwargs: Any) -> None:
        super().__init__(cls, *args, **kwargs)
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


class RayCrew:
    """The actors in rank order, what they are called and where they run."""

    def __init__(self, name: str) -> None:
        self.name = name
        self.handles: list[Any] = []
        self.names: list[str] = []
        self.seats: dict[int, Seat] = {}
        self.port = 0
        self._killed = False
        self._constructed = False
        self._ray = connection()
        #: The bundles that the actors take a share of.
        self.bundles: frozenset[Bundle] = frozenset()

    @property
    def ended(self) -> bool:
        """Whether the workers have been ended, by themselves or with their Ray."""
        return self._killed or self._ray != connection()

    @property
    def standing(self) -> bool:
        """Whether the workers are constructed and have not been ended."""
        return self._constructed and not self.ended

    def kill(self) -> None:
        """End the actors at once, whatever they do."""
        for handle in [] if self.ended else self.handles:
            ray.kill(handle)
        self._killed = True

    def start(self, pool: RayResourcePool, start: CrewStart, ask: Ask) -> None:
        """Start all processes at once, then construct the workers, which need rank 0's address, at once."""
        end = time.monotonic() + start.timeout
        self.handles, self.names, self.seats = [], [], {}
        self._killed = self._constructed = False
        pool.get_placement_groups(start.strategy, device_name=start.device_name)
        self.bundles = frozenset(pool.bundles())
        self._ray = connection()
        pool.admit(self)
        self._create(pool, start)
        prepare = {place.rank: ((place,), {}) for place in self._places(pool, start.env)}
        answers: list[tuple[Seat, int]] = ask("dagrl_prepare", prepare, end - time.monotonic())
        self.seats = {seat.rank: seat for seat, _ in answers}
        remember(self.seats.values())
        self.port = answers[0][1]
        plain = ray.put(start.maker.plain)
        construct = {rank: ((plain, self.seats[0].node_ip, self.port), {}) for rank in self.seats}
        ask("dagrl_construct", construct, end - time.monotonic())
        self._constructed = True

    def attach(self, names: Sequence[str], handles: Sequence[Any], ask: Ask, timeout: float) -> type:
        """Take over living workers, given in rank order by handles or else by names; their class.

        Raises:
            ClusterError: when there is no worker of a name.
            DispatchError: when they are not the ranks of one group.
        """
        self.handles = list(handles) or [_found(name) for name in names]
        self._ray = connection()
        self.names = list(names)
        answers: list[tuple[Seat, int, type]] = ask(
            "dagrl_introduce", dict.fromkeys(range(len(self.handles)), ((), {})), timeout
        )
        ranks = [seat.rank for seat, _, _ in answers]
        if ranks != list(range(len(answers))) or len({seat.group for seat, _, _ in answers}) != 1:
            shown = ", ".join(f"rank {seat.rank} of `{seat.group}`" for seat, _, _ in answers)
            raise DispatchError(f"the workers are {shown}: give all ranks of one group in their order")
        self.seats = {seat.rank: seat for seat, _, _ in answers}
        remember(self.seats.values())
        self.port = answers[0][1]
        self._constructed = True
        return answers[0][2]

    def _create(self, pool: RayResourcePool, start: CrewStart) -> None:
        maker = start.maker
        options: dict[str, Any] = {**pool.share()}
        if isinstance(maker, RayClassWithInitArgs):
            options.update(maker.options)
        if start.detached:
            options["lifetime"] = "detached"
        if start.env:
            given: dict[str, Any] = options.get("runtime_env", {})
            options["runtime_env"] = {**given, "env_vars": {**given.get("env_vars", {}), **start.env}}
        cls = maker.plain.cls
        actor = ray.remote(host_class(cls.__name__, public_methods(cls)))
        unique = secrets.token_hex(4)
        for rank, (group, index) in enumerate(pool.bundles()):
            name = f"{self.name}_{unique}_{rank}"
            where = PlacementGroupSchedulingStrategy(group, index)
            named = {"name": name, "namespace": NAMESPACE, "scheduling_strategy": where}
            self.handles.append(actor.options(**named, **options).remote())
            self.names.append(name)

    def _places(self, pool: RayResourcePool, env: Mapping[str, str]) -> Iterator[Place]:
        threads = None if "OMP_NUM_THREADS" in env else os.environ.get("OMP_NUM_THREADS")
        sizes = zip(pool.local_rank_list(), pool.local_world_size_list(), strict=True)
        for rank, (local_rank, size) in enumerate(sizes):
            yield Place(
                group=self.name,
                rank=rank,
                world_size=pool.world_size,
                local_rank=local_rank,
                local_world_size=size,
                threads=env.get("OMP_NUM_THREADS", threads),
                sys_path=tuple(sys.path),
            )


class CrewStart:
    """How a crew is started, and started again."""

    def __init__(
        self,
        maker: ClassWithInitArgs,
        *,
        bin_pack: bool,
        detached: bool,
        timeout: float,
        worker_env: Mapping[str, str],
        device_name: str,
    ) -> None:
        self.maker = maker
        self.strategy = "STRICT_PACK" if bin_pack else "PACK"
        self.detached = detached
        self.timeout = timeout
        self.env = _environment(worker_env)
        self.device_name = device_name


def _environment(worker_env: Mapping[str, str]) -> dict[str, str]:
    """The variables with which the processes start: what the user gives, and where dagrl is if Ray cannot know."""
    check_worker_env(worker_env)
    root = [] if started_here() else import_root()
    path = [*root, *filter(None, [worker_env.get("PYTHONPATH")])]
    return {**worker_env, **({"PYTHONPATH": os.pathsep.join(path)} if path else {})}


def _found(name: str) -> Any:
    try:
        return ray.get_actor(name, namespace=NAMESPACE)
    except ValueError:
        fix = "take the names from `worker_names` of a group made with `detached=True`"
        raise ClusterError([Problem(f"there is no worker `{name}` on the cluster.", fix=fix)]) from None
