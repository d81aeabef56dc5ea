"""The tensors inside Python values: replaced wherever they are, while what holds none stays the very same object."""

from collections.abc import Callable
from operator import is_
from typing import Any

import numpy as np
from torch import Tensor

_CONTAINERS = frozenset({dict, list, tuple, np.ndarray})


def replace_tensors(value: Any, replace: Callable[[Tensor], Any], known: dict[int, Any]) -> Any:
    """The value with the tensors in its dicts, lists, tuples and object arrays replaced.

    Values of other types are not looked into. ``known`` holds what was replaced by the id of what was there: an
    object met twice is one object again. It must not outlive the values.
    """
    kind = type(value)
    if kind not in _CONTAINERS and not isinstance(value, Tensor):
        return value
    if id(value) not in known:
        known[id(value)] = value  # what refers to itself ends here
        known[id(value)] = replace(value) if isinstance(value, Tensor) else _container(value, replace, known)
    return known[id(value)]


def _container(value: Any, replace: Callable[[Tensor], Any], known: dict[int, Any]) -> Any:
    if isinstance(value, np.ndarray):
        return _array(value, replace, known) if value.dtype == object else value
    there = list(value.values()) if isinstance(value, dict) else value
    inner = [each if type(each) is str else replace_tensors(each, replace, known) for each in there]
    if all(map(is_, inner, there)):
        return value
    return dict(zip(value, inner, strict=True)) if isinstance(value, dict) else type(value)(inner)


def _array(value: np.ndarray, replace: Callable[[Tensor], Any], known: dict[int, Any]) -> np.ndarray:
    there = value.ravel().tolist()
    inner = [each if type(each) is str else replace_tensors(each, replace, known) for each in there]
    if all(map(is_, inner, there)):
        return value
    return np.fromiter(inner, dtype=object, count=len(inner)).reshape(value.shape)
