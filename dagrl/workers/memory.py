"""What a process holds, in bytes."""

from __future__ import annotations

from functools import cache

import psutil
import torch

from dagrl.data.reported import RankMemory


def held_bytes(weights: int, optimizer: int, columns: int) -> RankMemory:
    """With what the process, or its GPU, has in use."""
    if torch.cuda.is_available():
        free, total = torch.cuda.mem_get_info()
        return RankMemory(weights, optimizer, columns, total - free, total)
    return RankMemory(weights, optimizer, columns, _this_process().memory_info().rss, _all_memory())


@cache
def _this_process() -> psutil.Process:
    return psutil.Process()


@cache
def _all_memory() -> int:
    return psutil.virtual_memory().total
