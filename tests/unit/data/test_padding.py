"""Padding in place, padding by itself, and what becomes of the wish for it."""

import pickle

import pytest
import torch

from dagrl.data import DataProto, pad_dataproto_to_divisor, unpad_dataproto
from dagrl.errors import DataError


def make(rows=3, **options):
    return DataProto.from_dict({"x": torch.arange(rows)}, {"o": [{"i": i} for i in range(rows)]}, {"m": 1}, **options)


@pytest.mark.parametrize(("candidate", "row"), [("first", 0), ("last", 2), ("", 2)])
def test_rows_are_appended_in_place(candidate, row):
    data = make()
    kept, batch = data.non_tensor_batch["o"], data.batch
    assert data.padding(2, candidate) is None
    assert data.batch["x"].tolist() == [0, 1, 2, row, row]
    assert [value["i"] for value in data.non_tensor_batch["o"]] == [0, 1, 2, row, row]
    objects = data.non_tensor_batch["o"]
    assert all(mine is theirs for mine, theirs in zip(objects[:3], kept, strict=True))
    assert len({id(value) for value in objects}) == 5
    assert len(kept) == batch.batch_size[0] == 3
    assert unpad_dataproto(data, 2) == make()
    data.padding(0)
    assert len(data) == 5


def test_padding_refuses():
    with pytest.raises(DataError, match="padding_candidate is 'middle'"):
        make().padding(1, "middle")
    with pytest.raises(DataError, match="`padding_size` is -1"):
        make().padding(-1)
    with pytest.raises(DataError, match="without rows cannot be padded by 2"):
        make(0).padding(2)
    empty = make(0)
    empty.padding(0)
    assert len(empty) == 0


def test_auto_padding_lets_chunks_differ():
    data = make(4, auto_padding=True)
    assert data.is_padding_enabled()
    assert [part.batch["x"].tolist() for part in data.chunk(3)] == [[0, 1], [2], [3]]
    assert [len(part) for part in make(2, auto_padding=True).chunk(4)] == [1, 1, 0, 0]
    single = DataProto.from_single_dict({"x": torch.arange(4)}, {"m": 1}, auto_padding=True)
    assert single.is_padding_enabled()
    assert single.meta_info["m"] == 1
    for plain in (make(4), DataProto.from_single_dict({"x": torch.arange(4)}), DataProto()):
        assert not plain.is_padding_enabled()
    with pytest.raises(DataError, match="4 rows do not divide into 3 equal chunks"):
        make(4).chunk(3)


@pytest.mark.parametrize(
    "method",
    [
        lambda data: data[1:],
        lambda data: data.select(["x"]),
        lambda data: data.repeat(2),
        lambda data: DataProto.concat(data.chunk(3)),
        lambda data: make(4).union(data),
        lambda data: pickle.loads(pickle.dumps(data)),
        lambda data: DataProto.from_tensordict(data.to_tensordict()),
        lambda data: pad_dataproto_to_divisor(data, 3)[0],
    ],
)
def test_auto_padding_travels_with_the_batch(method):
    assert method(make(4, auto_padding=True)).is_padding_enabled()


def test_meta_info_of_the_caller_is_left_alone():
    meta = {"m": 1}
    DataProto.from_dict({"x": torch.ones(1)}, meta_info=meta, auto_padding=True)
    assert meta == {"m": 1}
