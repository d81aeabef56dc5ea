"""Only `to`, `reorder`, `padding`, `pop` and `rename` change their receiver, and no method changes what it is given."""

import inspect
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from batches import as_rows, jagged_tensor

from dagrl.data import (
    DataProto,
    fold_batch_dim,
    pad_dataproto_to_divisor,
    serialize_tensordict,
    unfold_batch_dim,
    unpad_dataproto,
)

Given = dict[str, Any]
CHANGING = {"to", "reorder", "padding", "pop", "rename"}
#: Calls by the names of methods and functions; ``more`` holds arguments that must stay as they are.
CALLS: dict[str, Callable[[DataProto, Given, Path], Any]] = {
    "__getitem__": lambda data, more, _: (data[1], data[more["index"]], data[more["mask"]], data[1:3]),
    "__len__": lambda data, more, _: len(data),
    "check_consistency": lambda data, more, _: data.check_consistency(),
    "chunk": lambda data, more, _: data.chunk(2),
    "concat": lambda data, more, _: DataProto.concat([data, more["other"]]),
    "from_dict": lambda data, more, _: DataProto.from_dict(more["tensors"], more["objects"], more["meta"]),
    "from_single_dict": lambda data, more, _: DataProto.from_single_dict({**more["tensors"]}, more["meta"]),
    "from_tensordict": lambda data, more, _: DataProto.from_tensordict(data.batch, more["meta"]),
    "get_data_info": lambda data, more, _: data.get_data_info(),
    "is_padding_enabled": lambda data, more, _: data.is_padding_enabled(),
    "make_iterator": lambda data, more, _: list(data.make_iterator(3, 2, 1, more["options"])),
    "print_size": lambda data, more, _: data.print_size("size"),
    "repeat": lambda data, more, _: (data.repeat(2), data.repeat(2, interleave=False)),
    "rows_at": lambda data, more, _: data.rows_at(torch.tensor([0]), own_objects_from=0),
    "sample_level_repeat": lambda data, more, _: data.sample_level_repeat(more["counts"]),
    "save_to_disk": lambda data, more, folder: data.save_to_disk(str(folder / "batch")),
    "load_from_disk": lambda data, more, folder: (
        data.save_to_disk(str(folder / "batch")),
        DataProto.load_from_disk(str(folder / "batch")),
    ),
    "select": lambda data, more, _: (data.select(more["names"]), data.select(deepcopy=True)),
    "select_idxs": lambda data, more, _: data.select_idxs(more["mask"]),
    "slice": lambda data, more, _: data.slice(0, 4, 2),
    "split": lambda data, more, _: data.split(3),
    "to_tensordict": lambda data, more, _: data.to_tensordict(),
    "unfold_column_chunks": lambda data, more, _: data.unfold_column_chunks(2, more["names"]),
    "union": lambda data, more, _: data.union(more["other"]),
    "pop": lambda data, more, _: data.pop(more["names"], ["info"], ["step"]),
    "rename": lambda data, more, _: data.rename(more["names"], ["y"]),
    "reorder": lambda data, more, _: data.reorder(more["order"]),
    "padding": lambda data, more, _: data.padding(2),
    "to": lambda data, more, _: data.to("cpu"),
    "pad_dataproto_to_divisor": lambda data, more, _: pad_dataproto_to_divisor(data, 4),
    "unpad_dataproto": lambda data, more, _: unpad_dataproto(data, 2),
    "fold_batch_dim": lambda data, more, _: unfold_batch_dim(fold_batch_dim(more["dense"], 3)),
    "serialize_tensordict": lambda data, more, _: serialize_tensordict(data.batch),
}


def batch() -> DataProto:
    tensors = {"x": torch.arange(12).view(6, 2), "ragged": jagged_tensor(torch.float32, [2, 0, 4, 2, 2, 6], "flat")}
    objects = {"info": [{"row": row, "list": [row]} for row in range(6)], "text": list("abcdef")}
    return DataProto.from_dict(tensors, objects, {"step": 3, "metrics": {"loss": [1.0]}})


def arguments() -> Given:
    return {
        "other": batch(), "dense": batch().select(["x"]), "names": ["x"], "index": [0, -1], "order": [5, 4, 3, 2, 1, 0],
        "mask": torch.tensor([True, False] * 3), "counts": np.array([1, 0, 2, 1, 1, 1]), "options": {"shuffle": True},
        "tensors": {"x": torch.zeros(2)}, "objects": {"o": [[1], [2]]}, "meta": {"step": 3},
    }  # fmt: skip


def state(value: Any) -> Any:
    """The value as text; of a batch every byte and object."""
    if isinstance(value, DataProto):
        return [sorted(value.batch.keys()), as_rows(value), repr(value.meta_info), value.batch.batch_size]
    if isinstance(value, dict):
        return {name: state(each) for name, each in value.items()}
    return repr(value)


@pytest.mark.parametrize("name", CALLS)
def test_the_receiver_and_the_arguments_stay_as_they_are(name: str, tmp_path: Path) -> None:
    data, more = batch(), arguments()
    content = (data.batch, dict(data.non_tensor_batch), data.meta_info, dict(data.meta_info))
    before, given = state(data), state(more)
    CALLS[name](data, more, tmp_path)
    assert state(more) == given
    if name in CHANGING:
        return
    assert state(data) == before
    assert data.batch is content[0]
    assert data.meta_info is content[2]
    assert all(data.non_tensor_batch[name] is column for name, column in content[1].items())


def test_every_method_is_looked_at() -> None:
    methods = {name for name, _ in inspect.getmembers(DataProto, inspect.isroutine) if not name.startswith("_")}
    assert methods <= CALLS.keys()
