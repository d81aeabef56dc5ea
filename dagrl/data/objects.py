"""Object columns: one Python value for each row, whatever the values are."""

import copy
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from dagrl.errors import DataTypeError


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
    """The column with deep copies of its values from ``start`` on, so that these rows share no dict with others."""
    copies = object_array([copy.deepcopy(value) for value in values[start:]])
    return np.concatenate([values[:start], copies])
