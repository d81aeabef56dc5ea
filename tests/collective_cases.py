"""What ranks tell each other, without a model."""

import math
from typing import Any

import torch
from torch import Tensor, nn

from dagrl.engines import gradients
from dagrl.engines.parallel import DataParallel

SHAPES = ((3, 2), (4,), (5, 1), (2,), (1,))


def parameters(rank: int) -> list[nn.Parameter]:
    """Gradients that differ by rank; the second only on rank 1, the fourth on none, the last in another type."""
    made = [nn.Parameter(torch.zeros(shape)) for shape in SHAPES]
    made[-1] = nn.Parameter(torch.zeros(SHAPES[-1], dtype=torch.float64))
    for number, parameter in enumerate(made):
        if number != 3 and (number != 1 or rank == 1):
            parameter.grad = torch.full_like(parameter, 10**number * (rank + 1))
    return made


def talk(rank: int, size: int) -> dict[str, Any]:
    parallel = DataParallel(rank, size, "replicate")
    sums: dict[int, list[Tensor | None]] = {}
    for bucket in (1, 9, 1 << 24):
        gradients._BUCKET = bucket
        own = parameters(rank)
        gradients.add_up_gradients(own, parallel)
        sums[bucket] = [parameter.grad for parameter in own]
    return {
        "sum": parallel.sum([rank, 0.5, math.pi * 1e9]),
        "max": [parallel.max(rank), parallel.max(-rank)],
        "gather": parallel.gather(torch.arange(rank) + (1 << 60)),
        "sums": sums,
    }


def wait_for_nobody(rank: int, size: int) -> None:
    """Rank 0 alone asks for a sum."""
    if rank == 0:
        DataParallel(rank, size, "replicate").sum([1.0])
