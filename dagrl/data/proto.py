"""DataProto: a batch of rows as tensor columns, object columns and meta_info; the payload of every worker call.

Methods return new batches that share tensors and objects with the receiver where they can. Only `to`, `reorder`,
`padding`, `pop` and `rename` change their receiver, and nothing changes its arguments.
"""

from collections.abc import Mapping, Sequence
from typing import Any, Self

import numpy as np
from tensordict import TensorDict
from torch import Tensor

from dagrl.data.batch_columns import ColumnMethods
from dagrl.data.batch_item import DataProtoItem
from dagrl.data.batch_rows import RowMethods
from dagrl.data.describing import data_info, size_text
from dagrl.data.disk import read_batch, write_batch
from dagrl.data.merge import concat_parts, union_meta, union_numpy_dict, union_tensor_dict
from dagrl.data.padding import AUTO_PADDING, pad_dataproto_to_divisor, unpad_dataproto
from dagrl.data.tensordicts import as_tensordict, build_tensordict, from_tensordict
from dagrl.errors import DataError, DataTypeError, MissingColumnError, RowIndexError

__all__ = [
    "DataError",
    "DataProto",
    "DataProtoItem",
    "DataTypeError",
    "MissingColumnError",
    "RowIndexError",
    "pad_dataproto_to_divisor",
    "union_numpy_dict",
    "union_tensor_dict",
    "unpad_dataproto",
]


class DataProto(RowMethods, ColumnMethods):
    """Rows as tensor columns (``batch``), object columns of shape (rows,) and what is true of all rows.

    Lists and arrays given for an object column become arrays of dtype object. Two batches are equal if
    their columns and meta_info are; NaN equals NaN.

    Raises:
        DataError: if the columns disagree on the number of rows, naming the column.
    """

    @classmethod
    def from_dict(
        cls,
        tensors: Mapping[str, Tensor] | None = None,
        non_tensors: Mapping[str, Sequence[Any] | np.ndarray] | None = None,
        meta_info: Mapping[str, Any] | None = None,
        num_batch_dims: int = 1,
        auto_padding: bool = False,
    ) -> Self:
        """A batch of tensor columns, which share their first ``num_batch_dims`` dims, and object columns.

        ``auto_padding`` lets it be cut into chunks that its rows do not divide into.
        """
        batch = build_tensordict(tensors, num_batch_dims) if tensors else None
        meta = {**(meta_info or {}), **({AUTO_PADDING: True} if auto_padding else {})}
        return cls(batch, dict(non_tensors or {}), meta)  # pyright: ignore[reportArgumentType] - arrays are made of them

    @classmethod
    def from_single_dict(
        cls,
        data: Mapping[str, Tensor | np.ndarray | Sequence[Any]],
        meta_info: Mapping[str, Any] | None = None,
        auto_padding: bool = False,
    ) -> Self:
        """A batch whose tensors become tensor columns, and whose arrays and lists become object columns."""
        tensors = {name: value for name, value in data.items() if isinstance(value, Tensor)}
        objects = {name: value for name, value in data.items() if not isinstance(value, Tensor)}
        return cls.from_dict(tensors, objects, meta_info, auto_padding=auto_padding)

    @classmethod
    def from_tensordict(
        cls,
        tensor_dict: TensorDict | None = None,
        meta_info: Mapping[str, Any] | None = None,
        num_batch_dims: int = 1,
    ) -> Self:
        """A batch from a TensorDict: stacks of non-tensor data become object columns, single data meta_info."""
        if tensor_dict is None:
            return cls(meta_info=dict(meta_info or {}))
        batch, objects, meta = from_tensordict(tensor_dict, num_batch_dims)
        return cls(batch, objects, union_meta(meta, meta_info or {}))

    @staticmethod
    def concat(data: "Sequence[DataProto]") -> "DataProto":
        """All parts stacked in order; meta_info merged.

        Raises:
            DataError: naming the column and part that do not fit, or the meta_info key whose values clash.
        """
        return DataProto(*concat_parts(data))

    def to_tensordict(self) -> TensorDict:
        """All columns and meta_info in one new TensorDict, as `from_tensordict` reads it."""
        return as_tensordict(self.batch, self.non_tensor_batch, self.meta_info, len(self))

    def save_to_disk(self, filepath: str) -> None:
        """Write everything to one safetensors file at any fsspec URL; it is there complete or not at all.

        Raises:
            DataTypeError: naming the column and row, or the meta_info key, of a value that has no form without pickle.
        """
        self.check_consistency()
        write_batch(str(filepath), self.batch, self.non_tensor_batch, self.meta_info)

    @staticmethod
    def load_from_disk(filepath: str) -> "DataProto":
        """What `save_to_disk` wrote, on the CPU; nothing is unpickled.

        Raises:
            DataError: if there is no such file, or it is another one.
        """
        return DataProto(*read_batch(str(filepath)))

    def get_data_info(self) -> str:
        """The columns with their shapes, dtypes and devices, and the types in meta_info, as indented lines."""
        return data_info(*self._content())

    def print_size(self, prefix: str = "") -> None:
        """Print how much the tensor columns hold and how many objects there are."""
        message = size_text(*self._content()[:2])
        print(f"{prefix}, {message}" if prefix else message)  # noqa: T201 - printing is what it is for
