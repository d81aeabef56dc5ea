"""A batch gathered from all ranks of a process group."""

import pickle
from typing import TYPE_CHECKING, Any, TypeVar, cast

import numpy as np
import torch
import torch.distributed as dist
from torch import Tensor

from dagrl.data.merge import concat_parts

if TYPE_CHECKING:
    from dagrl.data.batch_state import BatchState

Batch = TypeVar("Batch", bound="BatchState")


def all_gather_data_proto(data: Batch, process_group: Any) -> Batch:
    """Every rank's rows, in rank order, on every rank; changes ``data`` as `torch.distributed.all_gather` does.

    Ranks may have different numbers of rows. The tensors stay on the device of ``data``; meta_info is merged.

    Returns:
        ``data`` itself.

    Raises:
        DataError: as `DataProto.concat`, on every rank, where the batches of the ranks do not fit together.
    """
    buffers: list[pickle.PickleBuffer] = []
    head = pickle.dumps(data, protocol=5, buffer_callback=buffers.append)
    raw = [np.frombuffer(buffer.raw(), np.uint8) for buffer in buffers]
    sizes = [len(each) for each in raw]
    ranks = dist.get_world_size(process_group)
    heads: list[Any] = [None] * ranks
    dist.all_gather_object(heads, (head, sizes), group=process_group)
    received = _all_gathered(raw, [sum(each) for _, each in heads], process_group)
    parts = [_unpacked(part, *each) for part, each in zip(received, heads, strict=True)]
    device = None if data.batch is None else next((value.device for value in data.batch.values()), None)
    batch, objects, meta = concat_parts(parts)
    data.batch = batch if batch is None or device is None else batch.to(device)
    data.non_tensor_batch, data.meta_info = objects, meta
    return data


def _all_gathered(mine: list[np.ndarray], sizes: list[int], group: Any) -> list[Tensor]:
    """The bytes of every rank, on the CPU; they travel in tensors as long as the longest of them."""
    device = "cuda" if dist.get_backend(group) == "nccl" else "cpu"
    sent = torch.zeros(max(sizes), dtype=torch.uint8)
    if mine:
        np.concatenate(mine, out=sent.numpy()[: sum(map(len, mine))])
    sent = sent.to(device)
    everyone = [torch.empty_like(sent) for _ in sizes]
    dist.all_gather(everyone, sent, group=group)
    return [each.cpu() for each in everyone]


def _unpacked(data: Tensor, head: bytes, sizes: list[int]) -> "BatchState":
    parts = data[: sum(sizes)].split(sizes) if sizes else ()
    return cast("BatchState", pickle.loads(head, buffers=[part.numpy() for part in parts]))
