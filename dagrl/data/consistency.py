"""Whether the columns of a batch fit together."""

from collections.abc import Mapping
from typing import Any

import numpy as np
from tensordict import TensorDict

from dagrl.data.tensordicts import tensors_of
from dagrl.errors import DataError, DataTypeError


def has_columns(batch: TensorDict | None, objects: Mapping[str, np.ndarray]) -> bool:
    """False for a batch that is meta_info only, and so has no number of rows."""
    return batch is not None or bool(objects)


def num_rows(batch: TensorDict | None, objects: Mapping[str, np.ndarray]) -> int:
    """The rows, 0 where there are no columns."""
    if batch is not None:
        return batch.batch_size[0]
    return next((len(value) for value in objects.values()), 0)


def check_consistency(batch: TensorDict | None, objects: Mapping[str, Any]) -> None:
    """Raise a DataError that names the first column that does not fit the others."""
    if batch is not None and not batch.batch_size:
        raise DataError("the TensorDict of a batch needs at least one batch dim")
    columns = tensors_of(batch)
    rows = num_rows(batch, objects)
    for name, value in objects.items():
        if not isinstance(value, np.ndarray) or value.ndim == 0:
            raise DataTypeError(f"object column `{name}` is a {type(value).__name__}, not an array of objects")
        if len(value) != rows:
            raise DataError(f"object column `{name}` has {len(value)} rows, the batch has {rows}")
        if name in columns:
            raise DataError(f"column `{name}` is both a tensor and an object column")
