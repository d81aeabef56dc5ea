"""Models whose tensors are shared out over ranks by FSDP2, each along its first dimension."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import NamedTuple, cast

import torch
from torch import Tensor, nn
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.fsdp import FSDPModule, fully_shard
from torch.distributed.tensor import DTensor

from dagrl.engines.parallel import DataParallel


class Span(NamedTuple):
    """The rows of a tensor's first dimension that a rank holds."""

    offset: int
    rows: int


def shard(module: nn.Module, layers: Sequence[nn.Module], parallel: DataParallel) -> None:
    """Share out the parameters of a module, layer by layer and then what is left; gradients are sums over ranks.

    The module moves to the accelerator, if there is one, layer by layer.
    """
    mesh = init_device_mesh("cuda" if torch.cuda.is_available() else "cpu", (parallel.size,))
    for part in (*layers, module):
        fully_shard(part, mesh=mesh)
        sharded = cast("FSDPModule", part)
        # Losses are divided by global denominators already: a mean over ranks would divide twice. gloo only sums.
        sharded.set_gradient_divide_factor(1.0)
        sharded.set_force_sum_reduction_for_comms(True)


def reshard(module: nn.Module) -> None:
    """Let go of the whole tensors that a forward pass without backward leaves at the root."""
    if isinstance(module, FSDPModule):
        module.reshard()


def local(tensor: Tensor) -> Tensor:
    """What this rank holds of a tensor; it shares its memory."""
    return tensor.to_local() if isinstance(tensor, DTensor) else tensor


def tensor_bytes(tensors: Iterable[Tensor]) -> int:
    """What the memory of tensors takes on this rank: each storage once, and nothing of what is on the meta device."""
    storages = [local(tensor).untyped_storage() for tensor in tensors if not tensor.is_meta]
    return sum({storage.data_ptr(): storage.nbytes() for storage in storages}.values())


def whole(tensor: Tensor) -> Tensor:
    """The tensor of all ranks, which all must ask for."""
    return tensor.full_tensor() if isinstance(tensor, DTensor) else tensor


def span(tensor: Tensor, parallel: DataParallel) -> Span | None:
    """Which rows of a shared-out tensor this rank holds; None if it holds the tensor."""
    if not isinstance(tensor, DTensor):
        return None
    share = -(-len(tensor) // parallel.size)
    offset = min(parallel.rank * share, len(tensor))
    return Span(offset, min(share, len(tensor) - offset))
