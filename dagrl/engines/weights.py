"""Trained weights on their way into a rollout engine: named, cast, and put together a bucket at a time."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import TYPE_CHECKING, Protocol

import torch
import torch.distributed as dist
from torch import Tensor
from torch.distributed.tensor import DTensor

from dagrl.engines.bucket_memory import BucketMemory
from dagrl.engines.parallel import SINGLE, DataParallel
from dagrl.errors import EngineError, counted

if TYPE_CHECKING:
    from transformers import PreTrainedModel

#: Bytes that are put together at once: one transfer for many small tensors, and little memory.
BUCKET_BYTES = 64 * 2**20

_NAMES_SHOWN = 3

#: The shape of every tensor of a model by its Hugging Face name, tied ones under each of their names.
Layout = Mapping[str, tuple[int, ...]]


class Weights(Protocol):
    """Named tensors of a model, and their shapes before any of them is there.

    Iterating gives whole tensors under Hugging Face names, tied ones under each of their names. Where ranks share the
    weights out, all of them must iterate, to the end. A tensor may share memory with the trained one: copy it. Until
    all have come none that did may change: an engine may keep some so long.
    """

    @property
    def layout(self) -> Layout:
        """What iterating will give."""
        ...

    def __iter__(self) -> Iterator[tuple[str, Tensor]]: ...


def layout_of(model: PreTrainedModel) -> Layout:
    """The shapes of a model's tensors, whole even where this rank holds a share."""
    return {name: tuple(value.shape) for name, value in _tensors(model).items()}


def tied_names(model: PreTrainedModel) -> frozenset[str]:
    """The further names of tensors that have more than one."""
    first: dict[Tensor, str] = {}  # tensors are told apart by identity
    return frozenset(name for name, value in _tensors(model).items() if first.setdefault(value, name) != name)


class TrainedWeights:
    """The weights of a model that may be shared out over ranks, in ``dtype``.

    No second copy of the model is made: shares come together in buckets of at most ``bucket_bytes`` (or one tensor),
    in ``memory``, which has room for the next bucket when no tensor of this one is alive any more. With ``casts=False``
    those that are not shared out come as they are trained, without a copy: for an engine that casts what it copies.
    """

    def __init__(
        self,
        model: PreTrainedModel,
        *,
        dtype: torch.dtype,
        parallel: DataParallel = SINGLE,
        bucket_bytes: int = BUCKET_BYTES,
        casts: bool = True,
        memory: BucketMemory | None = None,
    ) -> None:
        self._casts = casts
        self._memory = BucketMemory() if memory is None else memory
        self._tensors = _tensors(model)
        self._dtype = dtype
        self._parallel = parallel
        self._bucket_bytes = bucket_bytes
        self.layout: Layout = {name: tuple(value.shape) for name, value in self._tensors.items()}

    def __iter__(self) -> Iterator[tuple[str, Tensor]]:
        for bucket in self._buckets():
            whole = self._gathered([value for value in bucket if isinstance(value, DTensor)])
            for value, names in bucket.items():
                tensor = next(whole) if isinstance(value, DTensor) else self._cast(value.detach())
                for name in names:
                    yield name, tensor
                del tensor
            del whole  # it holds its bucket

    def _gathered(self, shared: Sequence[DTensor]) -> Iterator[Tensor]:
        return iter(gather_bucket(shared, self._dtype, self._parallel, self._memory) if shared else ())

    def _cast(self, value: Tensor) -> Tensor:
        if not self._casts or not value.is_floating_point() or value.dtype == self._dtype:
            return value
        return self._memory.take(value.numel(), self._dtype, value.device).view(value.shape).copy_(value)

    def _buckets(self) -> Iterator[dict[Tensor, list[str]]]:
        """Different tensors with their names, in the model's order, as many as a bucket may have bytes."""
        names: dict[Tensor, list[str]] = {}  # tensors are told apart by identity
        for name, value in self._tensors.items():
            names.setdefault(value, []).append(name)
        bucket: dict[Tensor, list[str]] = {}
        size = 0
        for value, of_one in names.items():
            num_bytes = value.numel() * self._dtype.itemsize
            if bucket and size + num_bytes > self._bucket_bytes:
                yield bucket
                bucket, size = {}, 0
            bucket[value] = of_one
            size += num_bytes
        if bucket:
            yield bucket


def gather_bucket(
    tensors: Sequence[DTensor], dtype: torch.dtype, parallel: DataParallel, memory: BucketMemory
) -> Iterator[Tensor]:
    """The whole tensors of which each rank holds some rows; all ranks must ask for the same.

    They are put together where they stay: a tensor that has its bucket to itself is not copied again.
    """
    numels = [-(-len(tensor) // parallel.size) * tensor.shape[1:].numel() for tensor in tensors]
    by_rank = memory.take(parallel.size * sum(numels), dtype, tensors[0].device).view(parallel.size, -1)
    _fill(by_rank[parallel.rank].split(numels), tensors)
    _exchange(by_rank, parallel.rank)
    for tensor, parts in zip(tensors, by_rank.split(numels, 1), strict=True):
        # Every rank but the last ones holds a full share: the rows are one after the other.
        yield parts.flatten()[: tensor.numel()].view(tensor.shape)


@torch.no_grad()  # of the generator it would keep alive what that has yielded
def _fill(places: Sequence[Tensor], tensors: Sequence[DTensor]) -> None:
    """Put what this rank holds of each tensor into its place."""
    for place, tensor in zip(places, tensors, strict=True):
        part = tensor.to_local().flatten()
        place[: part.numel()].copy_(part)


def _exchange(by_rank: Tensor, rank: int) -> None:
    """Have in each row what the rank of that number has there, in place."""
    if by_rank.device.type != "cpu":
        dist.all_gather_single(by_rank.view(-1), by_rank[rank])
        return
    # gloo's all-gather makes a second bucket and copies it, which takes longer than all the rest, and its threads keep
    # what was sent for a while: the memory of a bucket could then not be used for the next.
    peers = [(peer, row) for peer, row in enumerate(by_rank) if peer != rank]
    works = [dist.irecv(row, peer) for peer, row in peers] + [dist.isend(by_rank[rank], peer) for peer, _ in peers]
    for work in works:
        if work is not None:
            work.wait()


def check_layout(given: Layout, wanted: Layout, engine: str) -> None:
    """See that weights are those of the engine's model, before any of them is loaded.

    Raises:
        EngineError: naming what is missing, has no place, or has another shape.
    """
    shapes = [
        f"{name}: {given[name]} for {wanted[name]}" for name in given if name in wanted and given[name] != wanted[name]
    ]
    found = (
        ("missing", [name for name in wanted if name not in given]),
        ("not of the model", [name for name in given if name not in wanted]),
        ("of another shape", shapes),
    )
    faults = [f"{label}: {_few(names)}" for label, names in found if names]
    if faults:
        raise EngineError(
            f"weights that are not those of the {engine} engine's model were refused ({'; '.join(faults)})"
        )


class Arrivals:
    """Passes weights on, and knows afterwards whether all of them came, in their shapes."""

    def __init__(self, weights: Weights) -> None:
        self._weights = weights
        self._missing = dict(weights.layout)

    def __iter__(self) -> Iterator[tuple[str, Tensor]]:
        for name, tensor in self._weights:
            if self._missing.pop(name, None) != tuple(tensor.shape):
                raise EngineError(f"`{name}` came with the shape {tuple(tensor.shape)}, twice or unasked for")
            yield name, tensor
            del tensor  # the next bucket may then have its memory

    def check_complete(self) -> None:
        """Raises EngineError when a tensor that was announced has not come."""
        if self._missing:
            what = counted(len(self._missing), "tensor")
            raise EngineError(f"{what} did not come: {_few(list(self._missing))}")


def _tensors(model: PreTrainedModel) -> dict[str, Tensor]:
    weights: dict[str, Tensor] = model.state_dict(keep_vars=True)
    return weights


def _few(names: Sequence[str]) -> str:
    more = f" and {len(names) - _NAMES_SHOWN} more" if len(names) > _NAMES_SHOWN else ""
    return ", ".join(names[:_NAMES_SHOWN]) + more
