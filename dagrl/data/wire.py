"""What a batch is between processes: a few tuples that describe the tensor columns, and arrays of their bytes.

Every column says its name, dtype and shape, and travels as a numpy array over its own bytes (protocol 5 of pickle
takes such arrays out of band, and Ray maps them where it would copy a torch tensor). A view is compacted, so the k
chunks of a batch together are as long as the batch. Locks, strides and autograd graphs stay behind, and tensors of
any device arrive on the CPU.

A received tensor can be written to: it is the arriving buffer itself where that is writable, and a copy where it is
read-only, such as Ray's shared memory. Buffers kept out of band within one process are the sender's own memory.
Object columns and meta_info pickle as what they hold; tensors in them travel as columns do.
"""

from collections.abc import Mapping, Sequence
from typing import Any

import torch
from tensordict import TensorDict
from torch import Tensor

from dagrl.data.jagged import Jagged, SharedOffsets, is_jagged, jagged_parts
from dagrl.data.object_walk import holds_tensor, replace_tensors
from dagrl.data.tensor_bytes import Dense, dense_bytes, from_bytes
from dagrl.data.tensordicts import tensors_of
from dagrl.errors import DataError, DataTypeError

#: Raised whenever `receive` would misread what older code sent.
WIRE_VERSION = 2

#: The name, whether it requires grad, the ragged dim, and one dense tensor or the values and offsets of a jagged one.
Column = tuple[str, bool, int | None, tuple[Dense, ...]]


class OutgoingBatch:
    """The TensorDict of a batch in the batch's state: it pickles as `describe` says, and arrives as a TensorDict."""

    def __init__(self, batch: TensorDict) -> None:
        self._batch = batch

    def __reduce__(self) -> tuple[Any, ...]:
        return receive, describe(self._batch)


class OutgoingTensor:
    """A tensor inside an object: it pickles as a column does, and arrives as a tensor."""

    def __init__(self, tensor: Tensor) -> None:
        self._tensor = tensor

    def __reduce__(self) -> tuple[Any, ...]:
        return receive_tensor, (WIRE_VERSION, describe_column("", self._tensor))


def state_to_send(state: Mapping[str, Any]) -> dict[str, Any]:
    """The state of a batch or of one of its rows as it is pickled."""
    batch = state["batch"]
    sent = {**state, "batch": None if batch is None else OutgoingBatch(batch)}
    others = {name: value for name, value in state.items() if name != "batch"}
    return {**sent, **replace_tensors(others, _outgoing, {})} if holds_tensor(others) else sent


def describe(batch: TensorDict) -> tuple[int, tuple[int, ...], bool, list[Column]]:
    """The wire version, the batch size, whether the TensorDict names a device, and the columns.

    Raises:
        DataTypeError: naming a column that is neither a dense nor a jagged tensor.
    """
    columns = [describe_column(name, tensor) for name, tensor in tensors_of(batch).items()]
    return WIRE_VERSION, tuple(batch.batch_size), batch.device is not None, columns


def describe_column(name: str, tensor: Tensor) -> Column:
    """A column's name and what it is made of.

    Raises:
        DataTypeError: naming a column that is neither a dense nor a jagged tensor.
    """
    check_sendable(f"column `{name}`", tensor)
    plain = tensor.detach()
    if not is_jagged(plain):
        return name, tensor.requires_grad, None, (dense_bytes(plain),)
    parts = jagged_parts(plain)
    return name, tensor.requires_grad, parts.dim, (dense_bytes(parts.values), dense_bytes(parts.offsets))


def check_sendable(subject: str, tensor: Tensor) -> None:
    """Raise a DataTypeError that names the subject, such as a column, unless it is a dense or jagged tensor."""
    plain = tensor.detach()
    if is_jagged(plain) or _is_dense(plain):
        return
    if plain.is_nested:
        raise DataTypeError(f"{subject} is a nested tensor of layout torch.strided; build it with `torch.jagged`")
    what = f"a {type(tensor).__name__} of {plain.dtype}, {plain.layout}, on {plain.device}"
    raise DataTypeError(f"{subject} is {what}: only dense and jagged tensors have bytes; convert it first")


def receive(version: int, *content: Any) -> TensorDict:
    """The TensorDict that `describe` described.

    Raises:
        DataError: if the sender speaks another version.
    """
    _check_version(version)
    return _tensordict(*content)


def receive_tensor(version: int, column: Any) -> Tensor:
    """The tensor that `describe_column` described.

    Raises:
        DataError: if the sender speaks another version.
    """
    _check_version(version)
    return _received(column, SharedOffsets())


def _check_version(version: int) -> None:
    if version != WIRE_VERSION:
        fix = "run the same version of dagrl in every process"
        raise DataError(f"a batch arrived in wire format {version}, this process reads {WIRE_VERSION}; {fix}")


def _tensordict(size: tuple[int, ...], has_device: bool, columns: Sequence[Column]) -> TensorDict:
    shared = SharedOffsets()
    tensors = {column[0]: _received(column, shared) for column in columns}
    return TensorDict(tensors, batch_size=size, device="cpu" if has_device else None)


def _received(column: Column, shared: SharedOffsets) -> Tensor:
    _, requires_grad, ragged, parts = column
    tensors = [from_bytes(*part) for part in parts]
    tensor = tensors[0] if ragged is None else shared.column(Jagged(tensors[0], tensors[1], ragged))
    return tensor.requires_grad_(requires_grad)


def _is_dense(tensor: Tensor) -> bool:
    return (
        type(tensor) is Tensor
        and tensor.layout is torch.strided
        and not tensor.is_quantized
        and not tensor.is_meta
        and not tensor.is_nested
    )


def _outgoing(tensor: Tensor) -> Any:
    """The tensor ready to be sent; those of other kinds pickle as torch has it."""
    return OutgoingTensor(tensor) if is_jagged(tensor) or _is_dense(tensor) else tensor
