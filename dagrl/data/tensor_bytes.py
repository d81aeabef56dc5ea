"""Tensors as dtype, shape and an array over their own bytes, and back."""

import numpy as np
import torch
from torch import Tensor

#: The dtype, the shape and the bytes, in C order, of one dense tensor.
Dense = tuple[torch.dtype, tuple[int, ...], np.ndarray]


def dense_bytes(tensor: Tensor) -> Dense:
    """A dense tensor's dtype, shape and bytes; the array is the tensor's memory where that is contiguous on the CPU."""
    tensor = tensor.cpu().resolve_conj().resolve_neg().contiguous()
    flat = tensor.as_strided((tensor.numel(),), (1,))  # a contiguous row of 0 or 1 elements may have any stride
    return tensor.dtype, tuple(tensor.shape), flat.view(torch.uint8).numpy()


def from_bytes(dtype: torch.dtype, shape: tuple[int, ...], data: np.ndarray) -> Tensor:
    """The tensor; it is the array's memory where that is writable and aligned, else a copy."""
    if not data.size:  # torch views no empty tensor as another dtype
        return torch.empty(shape, dtype=dtype)
    flat = torch.from_numpy(data if data.flags.writeable else data.copy())
    if flat.data_ptr() % dtype.itemsize:  # a transport may put a buffer anywhere
        flat = flat.clone()
    return flat.view(dtype).view(shape)
