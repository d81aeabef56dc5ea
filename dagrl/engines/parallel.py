"""Processes that train one model on rows of their own: their group, and the few things they tell each other."""

from __future__ import annotations

import os
import socket
from collections.abc import Sequence
from dataclasses import dataclass
from datetime import timedelta
from ipaddress import ip_address
from typing import Literal, get_args

import torch
import torch.distributed as dist
from jaxtyping import Int64
from torch import Tensor

Strategy = Literal["none", "replicate", "fsdp"]


@dataclass(frozen=True)
class DataParallel:
    """One rank of a process group, and how the group holds the model.

    ``replicate``: the whole model on every rank; ``fsdp``: a share of every tensor. What is said between ranks
    must be said by all of them, in the same order. One rank alone says nothing.

    Raises:
        ValueError: for a rank outside the group, or several ranks without a strategy.
    """

    rank: int = 0
    size: int = 1
    strategy: Strategy = "none"

    def __post_init__(self) -> None:
        if not 0 <= self.rank < self.size:
            raise ValueError(f"rank {self.rank} is not one of {self.size}")
        if self.strategy not in get_args(Strategy) or (self.size > 1 and self.strategy == "none"):
            raise ValueError(f"{self.size} ranks cannot train by strategy `{self.strategy}`: use replicate or fsdp")

    @property
    def replicated(self) -> bool:
        """Whether each of several ranks holds the whole model."""
        return self.size > 1 and self.strategy == "replicate"

    @property
    def sharded(self) -> bool:
        """Whether each of several ranks holds a share: then forward and backward passes are collectives too."""
        return self.size > 1 and self.strategy == "fsdp"

    def sum(self, values: Sequence[float]) -> list[float]:
        """The sums over the ranks of a few numbers."""
        total = torch.tensor(list(values), dtype=torch.float64)
        self.add_up(total)
        return total.tolist()

    def max(self, value: int) -> int:
        """The largest of the ranks' numbers."""
        if self.size == 1:
            return value
        largest = torch.tensor([value])
        dist.all_reduce(largest, dist.ReduceOp.MAX)
        return int(largest)

    def gather(self, values: Int64[Tensor, " N"]) -> list[Int64[Tensor, " M"]]:
        """Every rank's numbers, by rank; each may have another count of them."""
        if self.size == 1:
            return [values]
        counts = [torch.empty(1, dtype=torch.int64) for _ in range(self.size)]
        dist.all_gather(counts, torch.tensor([len(values)]))
        padded = values.new_zeros(int(torch.cat(counts).max()), device="cpu")
        padded[: len(values)] = values
        rows = [torch.empty_like(padded) for _ in range(self.size)]
        dist.all_gather(rows, padded)
        return [row[: int(count)].to(values.device) for row, count in zip(rows, counts, strict=True)]

    def gather_alike(self, tensor: Tensor) -> list[Tensor]:
        """Every rank's tensor, by rank, where all have one dtype and shape."""
        if self.size == 1:
            return [tensor]
        own = tensor.detach().cpu().contiguous().flatten().view(torch.uint8)
        found = [torch.empty_like(own) for _ in range(self.size)]
        dist.all_gather(found, own)
        return [one.view(tensor.dtype).view(tensor.shape).to(tensor.device) for one in found]

    def add_up(self, tensor: Tensor) -> None:
        """Replace a tensor of one shape on all ranks by its sum over them, the same bits everywhere."""
        if self.size > 1:
            dist.all_reduce(tensor)


#: One process alone.
SINGLE = DataParallel()


def start_process_group(rank: int, world_size: int, address: str, port: int, timeout_seconds: float) -> None:
    """Join the default group, which rank 0 hosts at ``address``; with one process there is none.

    Numbers travel by gloo, tensors on a GPU by nccl. A rank that waits longer than the timeout for another raises.
    Ranks after the first draw their dropout from seeds of their own.
    """
    if world_size == 1:
        return
    timeout = timedelta(seconds=timeout_seconds)
    listener = _listen(address, port) if rank == 0 else None
    _bind_gloo(address)
    store = dist.TCPStore(  # pyright: ignore[reportPrivateImportUsage] - its documented name
        address,
        port,
        world_size,
        is_master=rank == 0,
        timeout=timeout,
        master_listen_fd=None if listener is None else listener.detach(),
    )
    backend = "cpu:gloo,cuda:nccl" if torch.cuda.is_available() else "gloo"
    dist.init_process_group(backend, store=store, rank=rank, world_size=world_size, timeout=timeout)
    torch.manual_seed(torch.initial_seed() + rank)


def end_process_group() -> None:
    """Leave the default group, if there is one."""
    if dist.is_initialized():
        dist.destroy_process_group()


def _listen(address: str, port: int) -> socket.socket:
    """A socket that listens at the address alone: torch's own store would listen on every interface."""
    family = socket.getaddrinfo(address, port, type=socket.SOCK_STREAM)[0][0]
    return socket.create_server((address, port), family=family, backlog=1024)


def _bind_gloo(address: str) -> None:
    """Keep gloo on the loopback interface where the group is on one machine; else it goes by the host's name."""
    place = str(socket.getaddrinfo(address, None)[0][4][0]).split("%")[0]
    names = [name for _, name in socket.if_nameindex() if name in ("lo", "lo0")]
    if ip_address(place).is_loopback and names:
        os.environ.setdefault("GLOO_SOCKET_IFNAME", names[0])
