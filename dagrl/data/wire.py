"""What a batch's TensorDict is between processes: a few tuples that describe the columns, and arrays of their bytes.

Every column says its name, dtype and shape, and travels as a numpy array over its own bytes (protocol 5 of pickle
takes such arrays out of band, and Ray maps them where it would copy a torch tensor). A view is compacted, so the k
chunks of a batch together are as long as the batch. Locks, strides and autograd graphs stay behind, and tensors of
any device arrive on the CPU.

A received tensor can be written to: it is the arriving buffer itself where that is writable, and a copy where it is
read-only, such as Ray's shared memory. Buffers kept out of band within one process are the sender's own memory.
Object columns and meta_info pickle as what they hold.
"""

import copy
from collections.abc import Sequence
from typing import Any

import numpy as np
import torch
from tensordict import TensorDict
from torch import Tensor

from dagrl.data.tensordicts import tensors_of
from dagrl.errors import DataError, DataTypeError

#: Raised whenever `receive` would misread what older code sent.
WIRE_VERSION = 1

#: The dtype, the shape and the bytes, in C order, of one dense tensor.
Dense = tuple[torch.dtype, tuple[int, ...], np.ndarray]
#: The name, whether it requires grad, the ragged dim, and one dense tensor or the values and offsets of a jagged one.
Column = tuple[str, bool, int | None, tuple[Dense, ...]]


class Outgoing:
    """The TensorDict of a batch inside the batch's state: it pickles as `describe` says, and arrives as a TensorDict.

    A copy of a batch within the process goes through its state as well, but must not go through bytes.
    """

    def __init__(self, batch: TensorDict) -> None:
        self.batch = batch

    def __deepcopy__(self, memo: dict[int, Any]) -> "Outgoing":
        return Outgoing(copy.deepcopy(self.batch, memo))

    def __reduce__(self) -> tuple[Any, ...]:
        return receive, describe(self.batch)


def state_to_send(state: dict[str, Any]) -> dict[str, Any]:
    """The state of a batch as it is pickled."""
    batch = state["batch"]
    return state if batch is None else {**state, "batch": Outgoing(batch)}


def state_received(state: dict[str, Any]) -> dict[str, Any]:
    """The state of a batch out of what `state_to_send` made, pickled or copied."""
    batch = state["batch"]
    return {**state, "batch": batch.batch} if isinstance(batch, Outgoing) else state


def describe(batch: TensorDict) -> tuple[int, tuple[int, ...], bool, list[Column]]:
    """The wire version, the batch size, whether the TensorDict names a device, and the columns.

    Raises:
        DataTypeError: naming a column that is neither a dense nor a jagged tensor.
    """
    columns = [_column(name, tensor) for name, tensor in tensors_of(batch).items()]
    return WIRE_VERSION, tuple(batch.batch_size), batch.device is not None, columns


def receive(version: int, *content: Any) -> TensorDict:
    """The TensorDict that `describe` described.

    Raises:
        DataError: if the sender speaks another version.
    """
    if version != WIRE_VERSION:
        fix = "run the same version of dagrl in every process"
        raise DataError(f"a batch arrived in wire format {version}, this process reads {WIRE_VERSION}; {fix}")
    return _tensordict(*content)


def _tensordict(size: tuple[int, ...], has_device: bool, columns: Sequence[Column]) -> TensorDict:
    known: dict[bytes, Tensor] = {}
    tensors = {
        name: _tensor(ragged, parts, known).requires_grad_(requires_grad)
        for name, requires_grad, ragged, parts in columns
    }
    return TensorDict(tensors, batch_size=size, device="cpu" if has_device else None)


def _column(name: str, tensor: Tensor) -> Column:
    plain = tensor.detach()
    if plain.layout is torch.jagged:
        ragged = next(dim for dim, size in enumerate(plain.shape) if isinstance(size, torch.SymInt))
        plain = plain.contiguous()
        offsets: Tensor = plain.offsets()  # pyright: ignore[reportAttributeAccessIssue] - jagged tensors have them
        return name, tensor.requires_grad, ragged, (_dense(plain.values()), _dense(offsets))
    if type(plain) is not Tensor or plain.layout is not torch.strided or plain.is_quantized or plain.is_meta:
        what = f"a {type(tensor).__name__} of {plain.dtype}, {plain.layout}, on {plain.device}"
        raise DataTypeError(f"column `{name}` is {what}: only dense and jagged tensors can be sent; convert it first")
    if plain.is_nested:
        raise DataTypeError(f"column `{name}` is a nested tensor of layout torch.strided; build it with `torch.jagged`")
    return name, tensor.requires_grad, None, (_dense(plain),)


def _dense(tensor: Tensor) -> Dense:
    tensor = tensor.cpu().resolve_conj().resolve_neg().contiguous()
    flat = tensor.as_strided((tensor.numel(),), (1,))  # a contiguous row of 0 or 1 elements may have any stride
    return tensor.dtype, tuple(tensor.shape), flat.view(torch.uint8).numpy()


def _tensor(ragged: int | None, parts: Sequence[Dense], known: dict[bytes, Tensor]) -> Tensor:
    """The tensor of a column; jagged columns with equal offsets share them, since torch combines no others."""
    if ragged is None:
        return _from_bytes(*parts[0])
    values, offsets = (_from_bytes(*part) for part in parts)
    offsets = known.setdefault(parts[1][2].tobytes(), offsets)
    return torch.nested.nested_tensor_from_jagged(values, offsets, jagged_dim=ragged)


def _from_bytes(dtype: torch.dtype, shape: tuple[int, ...], data: np.ndarray) -> Tensor:
    if not data.size:  # torch views no empty tensor as another dtype
        return torch.empty(shape, dtype=dtype)
    flat = torch.from_numpy(data if data.flags.writeable else data.copy())
    if flat.data_ptr() % dtype.itemsize:  # a transport may put a buffer anywhere
        flat = flat.clone()
    return flat.view(dtype).view(shape)
