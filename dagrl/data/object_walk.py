"""The tensors inside Python values: replaced wherever they are, while what holds none stays the very same object."""

import pickle
from collections.abc import Callable
from operator import is_
from typing import Any

import numpy as np
from torch import Tensor

_CONTAINERS = frozenset({dict, list, tuple, np.ndarray})


class _Found(Exception):
    """A tensor was met."""


class _TensorFinder(pickle.Pickler):
    """Walks through values at the speed of C, which no loop in Python comes near; what it writes goes nowhere."""

    def __init__(self) -> None:
        super().__init__(self, protocol=5)

    def write(self, _: object) -> None:
        """Drop what is written."""

    def reducer_override(self, obj: Any) -> Any:
        """What stands for a value of no built-in type: what an object array holds, nothing for the others."""
        if obj is str or obj is list:
            return NotImplemented
        if isinstance(obj, Tensor):
            raise _Found
        if type(obj) is np.ndarray and obj.dtype == object:
            return list, (obj.tolist(),)
        return str, ()


def holds_tensor(value: Any) -> bool:
    """Whether `replace_tensors` would find a tensor in it."""
    try:
        _TensorFinder().dump(value)
    except _Found:
        return True
    return False


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
