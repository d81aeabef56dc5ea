"""The base of the classes whose instances are the ranks of a worker group."""

from __future__ import annotations

import os
import socket
from collections.abc import Callable, Generator, Mapping
from contextlib import contextmanager
from contextvars import ContextVar
from dataclasses import dataclass
from typing import Any, Self

from dagrl.controller.decorator import Dispatch, Execute, register
from dagrl.errors import WorkerEnvironmentError

_VISIBLE_DEVICES = "CUDA_VISIBLE_DEVICES"
_current: ContextVar[Identity | None] = ContextVar("dagrl_worker_identity", default=None)


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


@contextmanager
def born_as(identity: Identity) -> Generator[None]:
    """Give the workers constructed inside this identity instead of the environment's."""
    token = _current.set(identity)
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

    def __new__(cls, *args: Any, **kwargs: Any) -> Self:
        """The worker, knowing which rank it is before its constructor runs."""
        worker = super().__new__(cls)
        worker._identity = _current.get() or Identity.from_env()
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

    @register(dispatch_mode=Dispatch.DP_COMPUTE_PROTO_WITH_FUNC)
    def execute_with_func_generator(self, func: Callable[..., Any], *args: Any, **kwargs: Any) -> Any:
        """What ``func(worker, *args, **kwargs)`` returns."""
        return func(self, *args, **kwargs)

    @register(execute_mode=Execute.RANK_ZERO)
    def execute_func_rank_zero(self, func: Callable[..., Any], *args: Any, **kwargs: Any) -> Any:
        """What ``func(*args, **kwargs)`` returns, on rank 0 alone."""
        return func(*args, **kwargs)


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
