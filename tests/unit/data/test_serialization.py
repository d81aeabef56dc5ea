"""Tensors and TensorDicts as plain tuples, there and back."""

import mmap

import pytest
import torch
from batches import DTYPES, batches, random_tensor, raw, rows_of
from hypothesis import given
from hypothesis import strategies as st
from tensordict import TensorDict

from dagrl.data import (
    deserialize_single_tensor,
    deserialize_tensordict,
    serialize_single_tensor,
    serialize_tensordict,
)
from dagrl.errors import DataError, DataTypeError


@given(st.sampled_from(DTYPES), st.sampled_from([(), (0,), (3,), (2, 3), (3, 0), (2, 2, 2)]), st.booleans())
def test_single_tensors(dtype, shape, turned):
    tensor = random_tensor(dtype, shape)
    tensor = tensor.transpose(0, -1) if turned and shape else tensor
    name, size, data = serialize_single_tensor(tensor)
    assert (name, size) == (str(dtype).removeprefix("torch."), tuple(tensor.shape))
    assert isinstance(data, memoryview)
    assert bytes(data) == raw(tensor)
    for given_data in (bytes(data), bytearray(data), data):  # the last is the tensor's own memory
        again = deserialize_single_tensor((name, list(size), given_data))
        assert (again.dtype, again.shape, raw(again)) == (tensor.dtype, tensor.shape, raw(tensor))
        again.zero_()


def test_memory_is_shared_where_it_can_be():
    tensor = torch.arange(4)
    _, _, data = serialize_single_tensor(tensor)
    tensor[0] = 7
    assert bytes(data[:8]) == (7).to_bytes(8, "little")
    buffer = mmap.mmap(-1, 4096)
    again = deserialize_single_tensor(("int64", (512,), buffer))
    again[0] = 5
    assert buffer[0] == 5


@given(batches())
def test_tensordicts(data):
    size, device, columns = serialize_tensordict(data.batch)
    assert (size, device) == ((len(data),), None)
    again = deserialize_tensordict((size, device, columns))
    assert again.batch_size == data.batch.batch_size
    assert {k: rows_of(v) for k, v in again.items()} == {k: rows_of(v) for k, v in data.batch.items()}


def test_jagged_columns_of_equal_lengths_stay_combinable():
    first = torch.nested.nested_tensor([torch.ones(2), torch.ones(1)], layout=torch.jagged)
    again = deserialize_tensordict(serialize_tensordict(TensorDict({"x": first, "y": first * 2}, batch_size=[2])))
    assert [row.tolist() for row in (again["x"] + again["y"]).unbind()] == [[3, 3], [3]]


def test_devices():
    batch = TensorDict({"x": torch.ones(2)}, batch_size=[2], device="cpu")
    assert serialize_tensordict(batch)[1] == "cpu"
    assert deserialize_tensordict(serialize_tensordict(batch)).device == torch.device("cpu")
    with pytest.raises(DataTypeError, match=r"`x`.*on meta"):
        serialize_tensordict(batch.to("meta"))


def test_what_is_refused():
    jagged = torch.nested.nested_tensor([torch.ones(2), torch.ones(1)], layout=torch.jagged)
    with pytest.raises(DataError, match="`serialize_tensordict`"):
        serialize_single_tensor(jagged)
    with pytest.raises(DataTypeError, match="sparse"):
        serialize_single_tensor(torch.eye(2).to_sparse())
    with pytest.raises(DataError, match="`nonsense` is no dtype"):
        deserialize_single_tensor(("nonsense", (1,), b"\0"))
