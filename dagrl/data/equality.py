"""Whether two values of a batch are the same: nested values compared deeply, NaN equal to NaN."""

import math
from collections.abc import Mapping, Sequence
from dataclasses import fields, is_dataclass
from typing import Any

import numpy as np
import torch
from torch import Tensor

from dagrl.data.jagged import Jagged, is_jagged, jagged_parts

#: Dtypes that torch does not compare, and the one that holds all their values.
_COMPARED_AS = {
    torch.float8_e4m3fn: torch.float32,
    torch.float8_e5m2: torch.float32,
    torch.float8_e4m3fnuz: torch.float32,
    torch.float8_e5m2fnuz: torch.float32,
    torch.float8_e8m0fnu: torch.float32,
    torch.complex32: torch.complex64,
}


def equal(left: Any, right: Any, rel_tol: float = 0.0) -> bool:
    """True if both are the same value.

    Tensors and arrays need equal shapes, dtypes (kinds for arrays) and elements. Python floats, also
    nested ones, may differ by ``rel_tol`` of the larger.
    """
    if left is right:
        return True
    if isinstance(left, Tensor) or isinstance(right, Tensor):
        return isinstance(left, Tensor) and isinstance(right, Tensor) and tensors_equal(left, right)
    if isinstance(left, np.ndarray) or isinstance(right, np.ndarray):
        return isinstance(left, np.ndarray) and isinstance(right, np.ndarray) and arrays_equal(left, right)
    if isinstance(left, Mapping) and isinstance(right, Mapping):
        return left.keys() == right.keys() and all(equal(left[key], right[key], rel_tol) for key in left)
    if isinstance(left, list | tuple) and isinstance(right, list | tuple):
        same_kind = isinstance(left, list) == isinstance(right, list) and len(left) == len(right)
        return same_kind and all(equal(a, b, rel_tol) for a, b in zip(left, right, strict=True))
    if is_dataclass(left) and type(left) is type(right):
        names = [field.name for field in fields(left) if field.compare]
        return all(equal(getattr(left, name), getattr(right, name), rel_tol) for name in names)
    return _scalars_equal(left, right, rel_tol)


def is_float(value: Any) -> bool:
    """True for a Python or numpy float, not for an int or bool."""
    return isinstance(value, float | np.floating)


def is_nan(value: Any) -> bool:
    """True for the scalars that differ from themselves: NaN and NaT."""
    return isinstance(value, float | complex | np.generic) and bool(value != value)


def tensors_equal(left: Tensor, right: Tensor) -> bool:
    """True for equal dtype, layout, shape and elements, NaN equal to NaN; the device does not matter."""
    if left.dtype != right.dtype or left.layout is not right.layout:
        return False
    left, right = left.detach(), right.detach()
    if is_jagged(left):
        return _jagged_equal(jagged_parts(left), jagged_parts(right))
    if left.is_nested or right.is_nested:
        return left.is_nested and right.is_nested and _all_equal(left.unbind(), right.unbind())
    return left.shape == right.shape and _elements_equal(left, right.to(left.device))


def _jagged_equal(left: Jagged, right: Jagged) -> bool:
    """Rows of equal lengths and elements; which offsets object a column holds is no part of its value."""
    if left.dim != right.dim or not tensors_equal(left.offsets, right.offsets):
        return False
    return tensors_equal(left.values, right.values)


def _all_equal(left: Sequence[Tensor], right: Sequence[Tensor]) -> bool:
    return len(left) == len(right) and all(map(tensors_equal, left, right))


def _elements_equal(left: Tensor, right: Tensor) -> bool:
    wider = _COMPARED_AS.get(left.dtype)
    if wider is not None:
        left, right = left.to(wider), right.to(wider)
    if torch.equal(left, right):
        return True
    same = (left == right) | ((left != left) & (right != right))
    return bool(same.all())


def arrays_equal(left: np.ndarray, right: np.ndarray) -> bool:
    """True for equal kind of dtype, shape and elements, NaN equal to NaN, objects compared deeply."""
    if left.dtype.kind != right.dtype.kind or left.shape != right.shape:
        return False
    if left.dtype == object:
        return all(equal(a, b) for a, b in zip(left.flat, right.flat, strict=True))
    return bool(np.array_equal(left, right, equal_nan=left.dtype.kind in "fcmM"))


def _scalars_equal(left: Any, right: Any, rel_tol: float) -> bool:
    if is_nan(left) or is_nan(right):
        return is_nan(left) and is_nan(right)
    if rel_tol and is_float(left) and is_float(right):
        return math.isclose(left, right, rel_tol=rel_tol)
    return bool(np.all(left == right))
