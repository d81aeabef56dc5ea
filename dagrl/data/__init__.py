"""Columns and their legend, metrics, DataProto. Never algorithms, never I/O of runs.

``columns`` and ``metrics`` are plain Python. DataProto loads tensordict, so it and its functions are imported on
first use. Its names and arguments are those of ``verl.protocol``; the table says where it behaves in another way.

==========================  ========================================  ==============================================
name                        verl                                      here
==========================  ========================================  ==============================================
DataProto.chunk             with auto_padding as many parts as        exactly that many parts, the first ones a row
                            torch cuts, tensors and objects cut       longer; tensors and objects alike; also with
                            differently                               ``uneven=True``
DataProto.split             no rows: no part                          no rows: one empty part, which keeps the columns
DataProto.concat            meta_info compared with ``==``, so NaN    NaN and roundings are no clash; metrics of any
                            clashes; metrics of the same names only   names; exact for Mean, Max, Min, Sum; the columns
                                                                      must agree, and the part that does not is named
DataProto.union             in place                                  a new batch; NaN equals NaN
DataProto.reorder           any index                                 a permutation
DataProto.select_idxs       lists, arrays, tensors                    slices too; an error names the row outside
DataProto.repeat            rows share their objects                  every row has objects of its own
DataProto.padding           any candidate but "first" means the last  "first", "last" or empty
DataProto.rename            tensor columns                            object columns too
DataProto.make_iterator     rows must divide; every argument of a     last mini-batch maybe shorter; ``shuffle`` and
                            DataLoader                                ``drop_last``
DataProto.from_tensordict   tensors only                              also object columns and meta_info, as
                                                                      `to_tensordict` writes them
DataProto.save_to_disk      pickle, local path                        safetensors with JSON, any fsspec URL
object columns              arrays of any shape                       one value for each row: shape (rows,)
auto_padding                also switched on by an environment        asked for by the batch only
                            variable
fold_batch_dim              objects become arrays [B', k]             objects become B' arrays of k
unfold_batch_dim            objects must be such arrays               lists and tuples too
all_gather_data_proto       equal numbers of rows; own meta_info      any numbers of rows; meta_info of all; also
                                                                      returns the batch
serialize_tensordict        jagged columns row by row                 jagged columns as values and offsets
jagged columns              few methods                               every method but fold and unfold_batch_dim
==========================  ========================================  ==============================================
"""

from importlib import import_module
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from dagrl.data.folding import fold_batch_dim, unfold_batch_dim
    from dagrl.data.gathering import all_gather_data_proto
    from dagrl.data.proto import (
        DataProto,
        DataProtoItem,
        pad_dataproto_to_divisor,
        union_numpy_dict,
        union_tensor_dict,
        unpad_dataproto,
    )
    from dagrl.data.serialization import (
        deserialize_single_tensor,
        deserialize_tensordict,
        serialize_single_tensor,
        serialize_tensordict,
    )

_HOMES = {
    "DataProto": "proto",
    "DataProtoItem": "proto",
    "all_gather_data_proto": "gathering",
    "deserialize_single_tensor": "serialization",
    "deserialize_tensordict": "serialization",
    "fold_batch_dim": "folding",
    "pad_dataproto_to_divisor": "padding",
    "serialize_single_tensor": "serialization",
    "serialize_tensordict": "serialization",
    "unfold_batch_dim": "folding",
    "union_numpy_dict": "merge",
    "union_tensor_dict": "merge",
    "unpad_dataproto": "padding",
}

__all__ = [
    "DataProto",
    "DataProtoItem",
    "all_gather_data_proto",
    "deserialize_single_tensor",
    "deserialize_tensordict",
    "fold_batch_dim",
    "pad_dataproto_to_divisor",
    "serialize_single_tensor",
    "serialize_tensordict",
    "unfold_batch_dim",
    "union_numpy_dict",
    "union_tensor_dict",
    "unpad_dataproto",
]


def __getattr__(name: str) -> object:
    if name not in __all__:
        raise AttributeError(f"module `{__name__}` has no attribute `{name}`")
    return getattr(import_module(f"{__name__}.{_HOMES[name]}"), name)


def __dir__() -> list[str]:
    return sorted([*globals(), *__all__])
