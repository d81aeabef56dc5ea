"""Python values as JSON that gives back the very same values, so that nothing on disk needs pickle.

JSON's own values are themselves. Others are an object with the one key ``$``, which says what they are: tuples, sets,
bytes, complex numbers, floats that are not finite, dicts whose keys are not all text, numpy arrays and scalars,
tensors (kept apart), and the metrics of a step.
"""

import base64
import math
from collections.abc import Callable
from types import NoneType
from typing import Any

import numpy as np
from torch import Tensor

from dagrl.data.metrics import Max, Mean, Metrics, Min, Sum
from dagrl.errors import DataError, DataTypeError

_MARK = "$"
_PLAIN = frozenset({NoneType, bool, int, str})
_METRICS = {"Mean": Mean, "Max": Max, "Min": Min, "Sum": Sum}


def to_json(value: Any, keep: Callable[[Tensor], Any]) -> Any:
    """The value in JSON's types; ``keep`` puts a tensor aside and says where in JSON.

    Raises:
        DataTypeError: for a value of another type, or one that holds itself.
    """
    try:
        return _encoded(value, keep)
    except RecursionError as error:
        raise DataTypeError("it holds itself, or is nested too deeply") from error


def from_json(value: Any, kept: Callable[[Any], Tensor]) -> Any:
    """The value that `to_json` made this of; ``kept`` gives it back."""
    if isinstance(value, list):
        return [from_json(each, kept) for each in value]
    if not isinstance(value, dict):
        return value
    if _MARK not in value:
        return {key: from_json(each, kept) for key, each in value.items()}
    kind, *content = value[_MARK]
    return _decoded(kind, content, kept)


def _encoded(value: Any, keep: Callable[[Tensor], Any]) -> Any:
    kind = type(value)
    if kind in _PLAIN or (kind is float and math.isfinite(value)):
        return value
    if kind is list:
        return [_encoded(each, keep) for each in value]
    if kind is dict and _MARK not in value and all(type(key) is str for key in value):
        return {key: _encoded(each, keep) for key, each in value.items()}
    return {_MARK: _marked(value, keep)}


def _marked(value: Any, keep: Callable[[Tensor], Any]) -> list[Any]:
    kind = type(value)
    match value:
        case float() if kind is float:
            return ["float", value.hex()]
        case complex() if kind is complex:
            return ["complex", value.real.hex(), value.imag.hex()]
        case bytes() if kind is bytes:
            return ["bytes", base64.b64encode(value).decode()]
        case tuple() | set() | frozenset() if kind in {tuple, set, frozenset}:
            return [kind.__name__, *(_encoded(each, keep) for each in value)]
        case dict() if kind is dict:
            return ["dict", *([_encoded(key, keep), _encoded(each, keep)] for key, each in value.items())]
        case Tensor():
            return ["tensor", keep(value)]
        case np.ndarray() if kind is np.ndarray:
            return _array(value, keep)
        case Mean() | Max() | Min() | Sum():
            return [kind.__name__, *(_encoded(each, keep) for each in vars(value).values())]
        case Metrics():
            return ["Metrics", _encoded(dict(value), keep)]
        case _:
            return _scalar(value)


def _scalar(value: Any) -> list[Any]:
    if not isinstance(value, np.generic) or value.dtype.hasobject or value.dtype.names:
        raise DataTypeError(f"a value of type `{type(value).__qualname__}` has no form without pickle")
    return ["scalar", value.dtype.str, base64.b64encode(value.tobytes()).decode()]


def _array(value: np.ndarray, keep: Callable[[Tensor], Any]) -> list[Any]:
    if value.dtype == object:
        return ["objects", list(value.shape), *(_encoded(each, keep) for each in value.ravel().tolist())]
    if value.dtype.hasobject or value.dtype.names:
        raise DataTypeError(f"an array of dtype `{value.dtype}` has no form without pickle")
    return ["array", value.dtype.str, list(value.shape), base64.b64encode(value.tobytes()).decode()]


def _decoded(kind: str, content: list[Any], kept: Callable[[Any], Tensor]) -> Any:
    if kind in {"float", "complex", "bytes", "scalar", "array", "tensor"}:
        return _decoded_leaf(kind, content, kept)
    inner = [from_json(each, kept) for each in content]
    match kind:
        case "tuple":
            return tuple(inner)
        case "set":
            return set(inner)
        case "frozenset":
            return frozenset(inner)
        case "dict":
            return {key: each for key, each in inner}  # noqa: C416 - pairs are lists
        case "objects":
            return _objects(inner[0], inner[1:])
        case "Metrics":
            return Metrics(inner[0])
        case _ if kind in _METRICS:
            return _METRICS[kind](*inner)
        case _:
            raise DataError(f"a value of kind `{kind}`, which this version does not know")


def _decoded_leaf(kind: str, content: list[Any], kept: Callable[[Any], Tensor]) -> Any:
    match kind:
        case "float":
            return float.fromhex(content[0])
        case "complex":
            return complex(*map(float.fromhex, content))
        case "bytes":
            return base64.b64decode(content[0])
        case "scalar":
            return _from_bytes(content[0], [], content[1])[()]
        case "array":
            return _from_bytes(*content)
        case _:
            return kept(content[0])


def _from_bytes(dtype: str, shape: list[int], data: str) -> np.ndarray:
    if not data or not np.dtype(dtype).itemsize:  # no elements, or only empty texts
        return np.zeros(shape, dtype)
    return np.frombuffer(base64.b64decode(data), dtype).reshape(shape).copy()


def _objects(shape: list[int], values: list[Any]) -> np.ndarray:
    return np.fromiter(values, dtype=object, count=len(values)).reshape(shape)
