"""What a process holds, in bytes."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from functools import cache

import psutil
import torch

from dagrl.engines.sharding import local


@dataclass(frozen=True)
class HeldBytes:
    """Bytes of weights, optimizer state and columns; those in use, and all there are: of the GPU where there is one."""

    weights: int
    optimizer: int
    columns: int
    used: int
    total: int


def held_bytes(weights: int, optimizer: int, columns: int) -> HeldBytes:
    """With what the process, or its GPU, has in use."""
    if torch.cuda.is_available():
        free, total = torch.cuda.mem_get_info()
        return HeldBytes(weights, optimizer, columns, total - free, total)
    return HeldBytes(weights, optimizer, columns, _this_process().memory_info().rss, psutil.virtual_memory().total)


def tensor_bytes(tensors: Iterable[torch.Tensor]) -> int:
    """Of each storage once, and of a tensor that is shared out this rank's share alone."""
    storages = [local(tensor).untyped_storage() for tensor in tensors]
    return sum({storage.data_ptr(): storage.nbytes() for storage in storages}.values())


@cache
def _this_process() -> psutil.Process:
    return psutil.Process()
