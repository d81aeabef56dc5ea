"""A batch in words: its columns, and how much they hold."""

from collections.abc import Mapping
from typing import Any

import numpy as np
from torch import Tensor

from dagrl.data.column_rows import num_bytes, shape_text


def data_info(tensors: Mapping[str, Tensor], objects: Mapping[str, np.ndarray], meta: Mapping[str, Any]) -> str:
    """The columns with their shapes, dtypes and devices, and the types in meta_info, as indented lines."""
    lines = ["batch", *(f"  {k}: {shape_text(v)} ({v.dtype}) on {v.device}" for k, v in tensors.items())]
    lines += ["non_tensor_batch", *(f"  {k}: ndarray{v.shape} ({v.dtype})" for k, v in objects.items())]
    lines += ["meta_info", *(f"  {k}: {type(v).__name__}" for k, v in meta.items())]
    return "\n".join(lines)


def size_text(tensors: Mapping[str, Tensor], objects: Mapping[str, np.ndarray]) -> str:
    """The gigabytes of the tensor columns and the number of objects."""
    size = sum(map(num_bytes, tensors.values())) / 1024**3
    count = sum(value.size for value in objects.values())
    return f"Size of tensordict: {size} GB, number of objects in non_tensor_batch: {count}"
