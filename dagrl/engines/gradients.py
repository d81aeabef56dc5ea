"""Gradients over ranks: their sum, their norm and their clipping."""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence

import torch
from torch import Tensor, nn

from dagrl.engines.parallel import DataParallel
from dagrl.engines.sharding import local

#: Numbers that are summed over ranks at a time: 64 MiB.
_BUCKET = 1 << 24


@torch.no_grad()
def add_up_gradients(parameters: Sequence[nn.Parameter], parallel: DataParallel) -> None:
    """Replace each gradient by its sum over ranks; a parameter without one on every rank stays without.

    One pass over the accumulated gradients: the sums have one order, whatever the micro-batches were.
    """
    for bucket in _buckets(parameters):
        given = [parameter.grad is not None for parameter in bucket]
        grads = [torch.zeros_like(p) if p.grad is None else p.grad for p in bucket]
        sizes = [parameter.numel() for parameter in bucket]
        flat = torch.cat([*(grad.flatten() for grad in grads), grads[0].new_tensor(given)])
        parallel.add_up(flat)
        *sums, holders = flat.split([*sizes, len(bucket)])
        for parameter, grad, total, holds in zip(bucket, grads, sums, holders.tolist(), strict=True):
            parameter.grad = grad.copy_(total.view_as(grad)) if holds else None


def global_norm(parameters: Sequence[nn.Parameter], parallel: DataParallel) -> Tensor:
    """The norm of all gradients together, each counted once."""
    gradients = [local(parameter.grad) for parameter in parameters if parameter.grad is not None]
    norm = torch.nn.utils.get_total_norm(gradients)
    if not parallel.sharded:
        return norm
    (square,) = parallel.sum([float(norm) ** 2])
    return torch.tensor(math.sqrt(square), device=norm.device)


@torch.no_grad()
def clip_gradients(parameters: Sequence[nn.Parameter], max_norm: float, norm: Tensor) -> None:
    """Scale gradients of this norm down to ``max_norm``."""
    factor = (max_norm / (norm + 1e-6)).clamp(max=1.0)
    for parameter in parameters:
        if parameter.grad is not None:
            local(parameter.grad).mul_(factor)


def _buckets(parameters: Sequence[nn.Parameter]) -> Iterator[list[nn.Parameter]]:
    """Neighbours of one type, up to a bucket's size, or one parameter that is larger."""
    bucket: list[nn.Parameter] = []
    for parameter in parameters:
        full = sum(p.numel() for p in bucket) + parameter.numel() > _BUCKET
        if bucket and (full or parameter.dtype != bucket[0].dtype):
            yield bucket
            bucket = []
        bucket.append(parameter)
    if bucket:
        yield bucket
