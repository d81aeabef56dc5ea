"""Weights on their way to another worker group: whole tensors by name, packed into buckets that travel as bytes."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np
import torch
from torch import Tensor

from dagrl.engines.passes import as_module
from dagrl.engines.sharding import whole
from dagrl.errors import TrainingError

if TYPE_CHECKING:
    from transformers import PreTrainedModel

#: What a bucket holds at most, unless one tensor is larger: 256 MiB.
BUCKET_BYTES = 1 << 28

Named = tuple[str, Tensor]


@dataclass(frozen=True)
class Piece:
    """Where a tensor lies in its bucket."""

    name: str
    dtype: str
    shape: tuple[int, ...]


@dataclass(frozen=True)
class Bucket:
    """Some tensors, as bytes end to end in the order of ``pieces``."""

    pieces: tuple[Piece, ...]
    data: np.ndarray


@torch.no_grad()
def whole_tensors(model: PreTrainedModel, dtype: torch.dtype) -> Iterator[Named]:
    """Every parameter by its name, put together from the shares of all ranks, which must all walk through.

    One that has two names, as a tied head has, comes under both.
    """
    for name, parameter in as_module(model).named_parameters(remove_duplicate=False):
        yield name, whole(parameter).to(dtype)


def packed(tensors: Iterable[Named], bucket_bytes: int = BUCKET_BYTES) -> Iterator[Bucket]:
    """The tensors in buckets; at no time are more than one bucket's held."""
    held: list[Named] = []
    size = 0
    for name, tensor in tensors:
        if held and size + tensor.nbytes > bucket_bytes:
            yield _bucket(held)
            held, size = [], 0
        held.append((name, tensor))
        size += tensor.nbytes
    if held:
        yield _bucket(held)


def unpacked(buckets: Iterable[Bucket]) -> Iterator[Named]:
    """The tensors of the buckets, on the CPU; they may share the bucket's memory."""
    for bucket in buckets:
        # An object store's memory is not to be written to, and torch has no tensor that says so.
        data = torch.from_numpy(bucket.data if bucket.data.flags.writeable else bucket.data.copy())
        start = 0
        for piece in bucket.pieces:
            dtype = getattr(torch, piece.dtype)
            size = int(np.prod(piece.shape, dtype=np.int64)) * dtype.itemsize
            yield piece.name, data[start : start + size].view(dtype).view(piece.shape)
            start += size


@torch.no_grad()
def load_whole(model: PreTrainedModel, tensors: Iterable[Named]) -> None:
    """Take up all weights of a model that is whole here.

    Raises:
        TrainingError: for a tensor that the model has not, of another shape, or one that does not come: the model then
            is in part as it was, and must not generate.
    """
    parameters = dict(as_module(model).named_parameters(remove_duplicate=False))
    missing = set(parameters)
    for name, tensor in tensors:
        if name not in parameters or parameters[name].shape != tensor.shape:
            found = f"it has {list(parameters[name].shape)}" if name in parameters else "it has none of that name"
            raise TrainingError(f"`{name}` {list(tensor.shape)} does not fit the model that follows: {found}")
        parameters[name].copy_(tensor)
        missing.discard(name)
    if missing:
        raise TrainingError(f"{len(missing)} weights have not come to the model that follows, `{min(missing)}` first")


def _bucket(tensors: list[Named]) -> Bucket:
    pieces = tuple(
        Piece(name, str(tensor.dtype).removeprefix("torch."), tuple(tensor.shape)) for name, tensor in tensors
    )
    data = torch.empty(sum(tensor.nbytes for _, tensor in tensors), dtype=torch.uint8)
    start = 0
    for _, tensor in tensors:
        data[start : start + tensor.nbytes].copy_(tensor.contiguous().view(-1).view(torch.uint8))
        start += tensor.nbytes
    return Bucket(pieces, data.numpy())
