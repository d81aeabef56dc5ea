"""Rows that repeat others so that all ranks have equally many: how they are told, and kept out of what is learned."""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from jaxtyping import Bool
    from torch import Tensor

    from dagrl.data.proto import DataProto

#: True on rows that were repeated to make shards equally long; present in every shard of a call that was padded.
PADDING_MASK = "padding_mask"


def real_rows(data: DataProto) -> Bool[Tensor, " B"]:
    """True on the rows that were given, False on those that repeat others so that all ranks have equally many."""
    import torch

    if data.batch is None or PADDING_MASK not in data.batch.keys():  # noqa: SIM118 - a TensorDict iterates rows
        return torch.ones(len(data), dtype=torch.bool)
    return ~data.batch[PADDING_MASK]


def marked_padding(data: DataProto, padding: int) -> DataProto:
    """The batch with its last rows marked as padding, out of every loss and every group."""
    import torch

    from dagrl.data.proto import DataProto
    from dagrl.data.tensordicts import TensorDict, tensors_of
    from dagrl.ops.advantages import NO_GROUP

    real = len(data) - padding
    columns = tensors_of(data.batch)
    changed = {PADDING_MASK: torch.arange(len(data)) >= real}
    for name, neutral in (("response_mask", False), ("group_ids", NO_GROUP)):
        if padding and name in columns:
            changed[name] = _filled(columns[name], real, neutral)
    size = [len(data)] if data.batch is None else data.batch.batch_size
    if len(size) > 1:
        changed[PADDING_MASK] = changed[PADDING_MASK].view(-1, *[1] * (len(size) - 1)).expand(size).clone()
    return DataProto(TensorDict({**columns, **changed}, batch_size=size), data.non_tensor_batch, data.meta_info)


def _filled(column: Tensor, start: int, value: int) -> Tensor:
    """The column with one value in all rows from ``start`` on."""
    import torch

    if not column.is_nested:
        filled = column.clone()
        filled[start:] = value
        return filled
    values = column.values().clone()
    values[int(column.offsets()[start]) :] = value  # pyright: ignore[reportAttributeAccessIssue] - jagged tensors have them
    return torch.nested.nested_tensor_from_jagged(values, column.offsets())  # pyright: ignore[reportAttributeAccessIssue]


def without_mask(data: DataProto) -> DataProto:
    """The batch without the column that marks padding."""
    if data.batch is None or PADDING_MASK not in data.batch.keys():  # noqa: SIM118 - a TensorDict iterates rows
        return data
    from dagrl.data.proto import DataProto

    batch = data.batch.exclude(PADDING_MASK)
    return DataProto(
        None if batch.is_empty() and data.non_tensor_batch else batch, data.non_tensor_batch, data.meta_info
    )
