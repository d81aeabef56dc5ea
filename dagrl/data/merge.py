"""Parts of a batch put together: stacked (`concat`) or side by side (`union`), clashes named."""

import reprlib
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

import numpy as np
from tensordict import TensorDict

from dagrl.data.column_rows import stack_rows
from dagrl.data.equality import equal, is_float, is_nan, tensors_equal
from dagrl.data.metrics import Max, Mean, Metrics, Min, Sum, merge_all
from dagrl.data.tensordicts import batch_of, tensors_of
from dagrl.errors import DataError, DataTypeError

if TYPE_CHECKING:
    from dagrl.data.batch_state import BatchState

#: The meta_info key whose values are merged instead of compared.
METRICS = "metrics"
#: Floats of two parts this close are one value that took two roundings.
ROUNDING = 1e-6


def union_tensor_dict(tensor_dict1: TensorDict, tensor_dict2: TensorDict) -> TensorDict:
    """A new TensorDict with the columns of both.

    Raises:
        DataError: if the batch sizes differ, or naming a column whose values differ.
    """
    if tensor_dict1.batch_size != tensor_dict2.batch_size:
        sizes = f"{list(tensor_dict1.batch_size)} and {list(tensor_dict2.batch_size)}"
        raise DataError(f"union: the batch sizes {sizes} differ")
    columns = tensors_of(tensor_dict1)
    for name, value in tensors_of(tensor_dict2).items():
        if name in columns and not tensors_equal(columns[name], value):
            raise DataError(f"union: column `{name}` is on both sides with different values")
        columns.setdefault(name, value)
    return TensorDict(columns, batch_size=tensor_dict1.batch_size, device=tensor_dict1.device)


def union_numpy_dict(
    tensor_dict1: Mapping[str, np.ndarray], tensor_dict2: Mapping[str, np.ndarray]
) -> dict[str, np.ndarray]:
    """A new dict with the object columns of both.

    Raises:
        DataError: naming a column whose values differ.
    """
    for name in tensor_dict2:
        if name in tensor_dict1 and not equal(tensor_dict1[name], tensor_dict2[name]):
            raise DataError(f"union: column `{name}` is on both sides with different values")
    return {**tensor_dict2, **tensor_dict1}


def union_meta(left: Mapping[str, Any], right: Mapping[str, Any]) -> dict[str, Any]:
    """A new dict with the entries of both.

    Raises:
        DataError: naming a key whose values differ.
    """
    for key in right:
        if key in left and not equal(left[key], right[key]):
            shown = f"{reprlib.repr(left[key])} and {reprlib.repr(right[key])}"
            raise DataError(f"union: meta_info key `{key}` has two values: {shown}")
    return {**right, **left}


def concat_parts(
    parts: Sequence["BatchState"],
) -> tuple[TensorDict | None, dict[str, np.ndarray], dict[str, Any]]:
    """The content of all parts: rows stacked in order, meta_info merged.

    Raises:
        DataError: naming the column and part that do not fit, or the meta_info key whose values clash.
    """
    if not parts:
        raise DataError("concat: there are no parts")
    for part in parts:
        part.check_consistency()
    check_columns(parts)
    meta = concat_meta([part.meta_info for part in parts])
    return concat_tensors(parts), concat_objects(parts), meta


def concat_tensors(parts: Sequence["BatchState"]) -> TensorDict | None:
    """The tensor columns of all parts, stacked along the rows; None if no part has a TensorDict."""
    batches = [part.batch for part in parts if part.batch is not None]
    if not batches:
        return None
    if any(batch.batch_size[1:] != batches[0].batch_size[1:] for batch in batches):
        raise DataError(f"concat: the batch sizes differ: {[list(batch.batch_size) for batch in batches]}")
    named = [tensors_of(batch) for batch in batches]
    return batch_of(stack_rows(named, named[0]), batches[0], sum(len(part) for part in parts))


def concat_objects(parts: Sequence["BatchState"]) -> dict[str, np.ndarray]:
    """The object columns of all parts, stacked along the rows."""
    return {name: np.concatenate([part.non_tensor_batch[name] for part in parts]) for name in parts[0].non_tensor_batch}


def check_columns(parts: Sequence["BatchState"]) -> None:
    """Refuse parts whose columns are not the same ones, of the same kind, naming the column and the part."""
    kinds = [_kinds(part) for part in parts]
    for name in dict.fromkeys(name for kind in kinds for name in kind):
        there = next(number for number, kind in enumerate(kinds) if name in kind)
        for number, kind in enumerate(kinds):
            if name not in kind:
                raise DataError(f"concat: column `{name}` is missing in part {number}; part {there} has it")
            if kind[name] != kinds[there][name]:
                clash = f"{kinds[there][name]} column in part {there} and {kind[name]} column in part {number}"
                raise DataError(f"concat: column `{name}` is {clash}")


def concat_meta(metas: Sequence[Mapping[str, Any]]) -> dict[str, Any]:
    """The entries of all parts: equal ones once, ``metrics`` merged.

    Floats that differ by rounding only are one value, the first; NaN beside a number stays NaN, so it is never hidden.
    A metrics object that all parts share, as the chunks of a batch do, was recorded once and stays as it is.

    Raises:
        DataError: naming a key whose values differ, and both parts.
    """
    merged: dict[str, Any] = {}
    origin: dict[str, int] = {}
    for number, meta in enumerate(metas):
        for key, value in meta.items():
            if key == METRICS:
                continue
            if key not in merged:
                merged[key], origin[key] = value, number
                continue
            if not _agree(merged[key], value):
                first = f"{reprlib.repr(merged[key])} in part {origin[key]}"
                raise DataError(f"concat: meta_info key `{key}` is {first} and {reprlib.repr(value)} in part {number}")
            if is_nan(value) and not is_nan(merged[key]):
                merged[key] = value
    given = [meta[METRICS] for meta in metas if METRICS in meta]
    if not given:
        return merged
    shared = len(given) == len(metas) and all(metrics is given[0] for metrics in given)
    return {**merged, METRICS: given[0] if shared else concat_metrics(given)}


def concat_metrics(given: Sequence[Any]) -> Any:
    """The metrics of all parts, by name.

    Mean, Max, Min and Sum merge exactly. Other values become a list in the order of the parts, lists joined.

    Raises:
        DataTypeError: naming a metric that is of two kinds, or metrics that are no mapping.
    """
    mappings = [each for metrics in given for each in (metrics if isinstance(metrics, list) else [metrics])]
    for metrics in mappings:
        if not isinstance(metrics, Mapping):
            raise DataTypeError(f"concat: meta_info key `{METRICS}` holds a {type(metrics).__name__}, not a mapping")
    if all(isinstance(metrics, Metrics) for metrics in mappings):
        return _merge_exactly(mappings)
    names = dict.fromkeys(name for metrics in mappings for name in metrics)
    return {name: _merge_metric(name, [metrics[name] for metrics in mappings if name in metrics]) for name in names}


def _merge_exactly(mappings: Sequence[Mapping[str, Any]]) -> Metrics:
    try:
        return merge_all(mappings)
    except TypeError as error:
        raise DataTypeError(f"concat: {error}") from error


def _merge_metric(name: str, values: list[Any]) -> Any:
    if any(isinstance(value, Mean | Max | Min | Sum) for value in values):
        return _merge_exactly([{name: value} for value in values])[name]
    return [each for value in values for each in (value if isinstance(value, list) else [value])]


def _agree(first: Any, second: Any) -> bool:
    if is_float(first) and is_float(second) and (is_nan(first) or is_nan(second)):
        return True
    return equal(first, second, rel_tol=ROUNDING)


def _kinds(part: "BatchState") -> dict[str, str]:
    return {**dict.fromkeys(tensors_of(part.batch), "a tensor"), **dict.fromkeys(part.non_tensor_batch, "an object")}
