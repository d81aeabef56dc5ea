"""Object columns: one Python value for each row, whatever the values are."""

import copy
from collections.abc import Mapping, Sequence
from types import NoneType
from typing import Any

import numpy as np

from dagrl.errors import DataTypeError

#: Values of exactly these types never change, so copies share them.
_UNCHANGING = frozenset({NoneType, bool, int, float, complex, str, bytes, range, type(...)})


def object_array(values: Sequence[Any] | np.ndarray) -> np.ndarray:
    """The values as an array of dtype object and shape (n,): a nested list, array or dict is one value.

    Rows of an array with several dims become its sub-arrays; numbers of a flat array become Python numbers.

    Raises:
        DataTypeError: if ``values`` is one value (a string, a mapping, a 0-dim array) and not one for each row.
    """
    if isinstance(values, str | bytes | Mapping) or (isinstance(values, np.ndarray) and values.ndim == 0):
        raise DataTypeError(f"an object column needs one value for each row, got a single {type(values).__name__}")
    if isinstance(values, np.ndarray) and values.ndim == 1:
        return values.astype(object, copy=False)
    return np.fromiter(values, dtype=object, count=len(values))


def object_columns(rows: Sequence[Mapping[str, Any]]) -> dict[str, np.ndarray]:
    """One dict for each row as one object column for each key, None where a row lacks the key.

    Columns come in the order in which their keys first appear.
    """
    names = dict.fromkeys(name for row in rows for name in row)
    return {name: object_array([row.get(name) for row in rows]) for name in names}


def object_column(name: str, values: Any) -> np.ndarray:
    """`object_array` of what was given for the column ``name``.

    Raises:
        DataTypeError: naming the column if ``values`` is no array, list or tuple.
    """
    if not isinstance(values, np.ndarray | list | tuple):
        raise DataTypeError(f"column `{name}` is a {type(values).__name__}, neither a tensor nor an array nor a list")
    if isinstance(values, np.ndarray) and values.ndim == 0:
        raise DataTypeError(f"object column `{name}` is a 0-dim array, it needs one value for each row")
    return object_array(values)


def own_copies(values: np.ndarray, start: int = 0) -> np.ndarray:
    """A new column with deep copies of its values from ``start`` on, so that these rows share no dict with others."""
    there = values[start:].tolist()
    if _UNCHANGING.issuperset(map(type, there)):
        return values.copy()
    return np.concatenate([values[:start], object_array([deep_copy(value) for value in there])])


def deep_copy(value: Any) -> Any:
    """What `copy.deepcopy` makes of it; lists, tuples and dicts of plain values are copied several times as fast."""
    try:
        return _plain_copy(value, set())
    except _NotPlain:
        return copy.deepcopy(value)


class _NotPlain(Exception):
    """A value that needs `copy.deepcopy`: another type, or a list or dict that is met twice."""


def _plain_copy(value: Any, met: set[int]) -> Any:
    kind = type(value)
    if kind in _UNCHANGING:
        return value
    if id(value) in met:
        raise _NotPlain
    met.add(id(value))
    if kind is dict:
        return {key: each if type(each) in _UNCHANGING else _plain_copy(each, met) for key, each in value.items()}
    if kind is list or kind is tuple:
        return kind([each if type(each) in _UNCHANGING else _plain_copy(each, met) for each in value])
    raise _NotPlain
