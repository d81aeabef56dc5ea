"""The base of the classes whose instances are the ranks of a worker group."""

from __future__ import annotations

import os
import socket
from collections.abc import Callable, Generator, Mapping
from contextlib import contextmanager
from contextvars import ContextVar
from dataclasses import dataclass, field
from typing import Any, Self

from dagrl.controller.decorator import Dispatch, Execute, register
from dagrl.controller.mesh import MeshPlace
from dagrl.errors import DispatchError, WorkerEnvironmentError

_VISIBLE_DEVICES = "CUDA_VISIBLE_DEVICES"
_current: ContextVar[Birth | None] = ContextVar("dagrl_worker_birth", default=None)


@dataclass(frozen=True)
class Identity:
    """Which rank a worker is, on which node, and where rank 0 listens."""

    rank: int = 0
    world_size: int = 1
    local_rank: int = 0
    local_world_size: int = 1
    node_ip: str = "127.0.0.1"
    master_addr: str = "127.0.0.1"
    master_port: int = 0

    def env(self) -> dict[str, str]:
        """The identity as the environment variables that torch.distributed reads."""
        return {
            "WORLD_SIZE": str(self.world_size),
            "RANK": str(self.rank),
            "LOCAL_WORLD_SIZE": str(self.local_world_size),
            "LOCAL_RANK": str(self.local_rank),
            "MASTER_ADDR": self.master_addr,
            "MASTER_PORT": str(self.master_port),
            "NODE_IP": self.node_ip,
        }

    @classmethod
    def from_env(cls, env: Mapping[str, str] = os.environ) -> Identity:
        """The identity that the environment states; without a RANK, that of a single worker.

        Raises:
            WorkerEnvironmentError: naming a variable that is missing beside RANK, or is no number.
        """
        if "RANK" not in env:
            return cls(master_port=free_port())
        rank, world_size = _number(env, "RANK"), _number(env, "WORLD_SIZE")
        return cls(
            rank=rank,
            world_size=world_size,
            local_rank=_number(env, "LOCAL_RANK", rank),
            local_world_size=_number(env, "LOCAL_WORLD_SIZE", world_size),
            node_ip=env.get("NODE_IP", "127.0.0.1"),
            master_addr=env.get("MASTER_ADDR", "127.0.0.1"),
            master_port=_number(env, "MASTER_PORT", None if world_size > 1 else free_port()),
        )


@dataclass(frozen=True)
class Birth:
    """What a worker knows of itself before its constructor runs."""

    identity: Identity
    fused: Mapping[str, Any] = field(default_factory=dict[str, Any])


@contextmanager
def born_as(identity: Identity, fused: Mapping[str, Any] | None = None) -> Generator[None]:
    """Give the workers constructed inside this identity, and the workers that share their process by role."""
    token = _current.set(Birth(identity, {} if fused is None else fused))
    try:
        yield
    finally:
        _current.reset(token)


def free_port() -> int:
    """A TCP port that nothing listens on."""
    with socket.socket() as probe:
        probe.bind(("", 0))
        return probe.getsockname()[1]


class Worker:
    """One rank: a process of its own on Ray, an object of this process in a `NaiveWorkerGroup`.

    Who it is comes from its group, or else from the environment (RANK, WORLD_SIZE, LOCAL_RANK, LOCAL_WORLD_SIZE,
    MASTER_ADDR, MASTER_PORT, NODE_IP), so that a worker also runs under torchrun. Subclasses need not call this
    class's constructor.
    """

    _identity: Identity
    _fused: Mapping[str, Any]
    _meshes: dict[str, MeshPlace]

    def __new__(cls, *args: Any, **kwargs: Any) -> Self:
        """The worker, knowing which rank it is before its constructor runs."""
        worker = super().__new__(cls)
        birth = _current.get() or Birth(Identity.from_env())
        worker._identity, worker._fused, worker._meshes = birth.identity, birth.fused, {}
        return worker

    def __init__(self, cuda_visible_devices: str | None = None) -> None:
        if cuda_visible_devices is not None:
            os.environ[_VISIBLE_DEVICES] = cuda_visible_devices

    @classmethod
    def env_keys(cls) -> list[str]:
        """The environment variables that the group sets, which a ``worker_env`` must leave alone."""
        return [*Identity().env(), _VISIBLE_DEVICES]

    @property
    def rank(self) -> int:
        """This worker's place in its group."""
        return self._identity.rank

    @property
    def world_size(self) -> int:
        """The number of workers in the group."""
        return self._identity.world_size

    @property
    def local_rank(self) -> int:
        """This worker's place among those of its group on its node."""
        return self._identity.local_rank

    @property
    def local_world_size(self) -> int:
        """The number of workers of the group on this node."""
        return self._identity.local_world_size

    @property
    def node_ip(self) -> str:
        """The address of this worker's node."""
        return self._identity.node_ip

    def get_master_addr_port(self) -> tuple[str, str]:
        """Where rank 0 listens for torch.distributed: its address and a port that was free."""
        return self._identity.master_addr, str(self._identity.master_port)

    def get_cuda_visible_devices(self) -> str:
        """The GPUs that this process sees, as CUDA_VISIBLE_DEVICES has them."""
        return os.environ.get(_VISIBLE_DEVICES, "not set")

    @property
    def fused(self) -> Mapping[str, Any]:
        """The workers of all roles in this process, this one too, by role; empty where roles do not share one."""
        return self._fused

    @property
    def fused_worker_dict(self) -> Mapping[str, Any]:
        """The same as `fused`."""
        return self._fused

    def get_fused_worker_by_name(self, worker_name: str) -> Any:
        """The worker of another role in this process, None if there is no such role."""
        return self._fused.get(worker_name)

    def set_dispatch_collect(
        self, mesh_name: str, dispatch_dp_rank: Mapping[str, int] | int, collect_dp_rank: Mapping[str, bool] | bool
    ) -> None:
        """Say which shard this worker takes of calls on a mesh, and whether its result is the one collected.

        As another worker's `get_dispatch_collect` has them, or the two values themselves.

        Raises:
            DispatchError: when a mapping has neither this mesh nor exactly one.
        """
        self._meshes[mesh_name] = (_of_mesh(mesh_name, dispatch_dp_rank), _of_mesh(mesh_name, collect_dp_rank))

    def get_dispatch_collect(self) -> dict[str, dict[str, Any]]:
        """What `set_dispatch_collect` was told, by mesh: ``dispatch_dp_rank`` and ``collect_dp_rank``."""
        return {
            "dispatch_dp_rank": {name: dp_rank for name, (dp_rank, _) in self._meshes.items()},
            "collect_dp_rank": {name: collected for name, (_, collected) in self._meshes.items()},
        }

    def query_mesh(self, mesh_name: str) -> MeshPlace | None:
        """This worker's shard on a mesh and whether its result is collected; None for an unknown mesh."""
        return self._meshes.get(mesh_name)

    @register(dispatch_mode=Dispatch.ONE_TO_ALL)
    def query_collect_info(self, mesh_name: str) -> bool:
        """Whether this worker's results of calls on the mesh are collected."""
        place = self._meshes.get(mesh_name)
        if place is None:
            raise DispatchError(f"there is no mesh `{mesh_name}`: `set_dispatch_collect` adds one")
        return place[1]

    @register(dispatch_mode=Dispatch.DP_COMPUTE_PROTO_WITH_FUNC)
    def execute_with_func_generator(self, func: Callable[..., Any], *args: Any, **kwargs: Any) -> Any:
        """What ``func(worker, *args, **kwargs)`` returns."""
        return func(self, *args, **kwargs)

    @register(execute_mode=Execute.RANK_ZERO)
    def execute_func_rank_zero(self, func: Callable[..., Any], *args: Any, **kwargs: Any) -> Any:
        """What ``func(*args, **kwargs)`` returns, on rank 0 alone."""
        return func(*args, **kwargs)


def _of_mesh(name: str, value: Mapping[str, Any] | Any) -> Any:
    """The value for a mesh, out of a mapping by mesh or as it is."""
    if not isinstance(value, Mapping):
        return value
    if name in value:
        return value[name]
    if len(value) != 1:
        raise DispatchError(f"mesh `{name}` is not among {sorted(value)}: give the mesh's own values")
    return next(iter(value.values()))


def check_worker_env(worker_env: Mapping[str, str]) -> None:
    """Raise a WorkerEnvironmentError that names the variables which the worker group sets itself."""
    taken = sorted(set(worker_env) & set(Worker.env_keys()))
    if taken:
        shown = ", ".join(f"`{key}`" for key in taken)
        raise WorkerEnvironmentError(f"`worker_env` sets {shown}, which the worker group sets itself: leave it out")


def _number(env: Mapping[str, str], key: str, default: int | None = None) -> int:
    text = env.get(key)
    if text is None and default is not None:
        return default
    if text is None:
        raise WorkerEnvironmentError(f"the environment has RANK but no {key}: set both, or neither for one worker")
    if not text.isdecimal():
        raise WorkerEnvironmentError(f"{key} is {text!r} in the environment, which is no number")
    return int(text)
