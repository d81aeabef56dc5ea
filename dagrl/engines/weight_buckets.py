"""Weights on their way to another process: whole tensors by name, packed into buckets that travel as bytes."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from torch import Tensor

from dagrl.engines.weights import BUCKET_BYTES, Layout, Weights


@dataclass(frozen=True)
class Piece:
    """A tensor in a bucket, and its names: more than one where it is tied."""

    names: tuple[str, ...]
    dtype: str
    shape: tuple[int, ...]


@dataclass(frozen=True)
class Bucket:
    """Some tensors, as bytes end to end in the order of ``pieces``."""

    pieces: tuple[Piece, ...]
    data: np.ndarray


@dataclass(frozen=True)
class Published:
    """What a process tells of weights that it has made ready: their shapes, and a handle for each bucket."""

    layout: Layout
    buckets: list[Any]


class ArrivedWeights:
    """Weights that another process has published, whose buckets come one after the other; they are read once."""

    def __init__(self, layout: Layout, buckets: Iterable[Bucket]) -> None:
        self.layout = layout
        self._buckets = buckets

    def __iter__(self) -> Iterator[tuple[str, Tensor]]:
        for bucket in self._buckets:
            yield from unpacked(bucket)


def packed(weights: Weights, bucket_bytes: int = BUCKET_BYTES) -> Iterator[Bucket]:
    """The weights in buckets of at most so many bytes, or one tensor; at no time are more than one bucket's held."""
    held: list[tuple[list[str], Tensor]] = []
    size = 0
    for name, tensor in weights:
        if held and held[-1][1] is tensor:
            held[-1][0].append(name)
            continue
        if held and size + tensor.nbytes > bucket_bytes:
            yield _bucket(held)
            held, size = [], 0
        held.append(([name], tensor))
        size += tensor.nbytes
    if held:
        yield _bucket(held)


def unpacked(bucket: Bucket) -> Iterator[tuple[str, Tensor]]:
    """The tensors of a bucket, on the CPU, under each of their names; they may share its memory."""
    # An object store's memory is not to be written to, and torch has no tensor that says so.
    data = torch.from_numpy(bucket.data if bucket.data.flags.writeable else bucket.data.copy())
    start = 0
    for piece in bucket.pieces:
        dtype = getattr(torch, piece.dtype)
        end = start + int(np.prod(piece.shape, dtype=np.int64)) * dtype.itemsize
        tensor = _read(data[start:end], dtype) if end > start else torch.empty(0, dtype=dtype)
        for name in piece.names:
            yield name, tensor.view(piece.shape)
        start = end


def _bucket(tensors: list[tuple[list[str], Tensor]]) -> Bucket:
    pieces = tuple(
        Piece(tuple(names), str(tensor.dtype).removeprefix("torch."), tuple(tensor.shape)) for names, tensor in tensors
    )
    data = torch.empty(sum(tensor.nbytes for _, tensor in tensors), dtype=torch.uint8)
    start = 0
    for _, tensor in tensors:
        data[start : start + tensor.nbytes].copy_(tensor.contiguous().flatten().view(torch.uint8))
        start += tensor.nbytes
    return Bucket(pieces, data.numpy())


def _read(data: Tensor, dtype: torch.dtype) -> Tensor:
    """Bytes as numbers: a view, where their place in memory fits the numbers' size."""
    return (data if data.storage_offset() % dtype.itemsize == 0 else data.clone()).view(dtype)
