"""A batch on disk: every dtype, layout and object comes back from any file system, and nothing is unpickled."""

import json
import os
import pickle
import subprocess
import sys
from math import inf, nan
from pathlib import Path

import numpy as np
import pytest
import torch
from batches import DTYPES, OBJECTS, as_rows, batches, dtypes_of, random_tensor
from hypothesis import given
from hypothesis import strategies as st
from safetensors.torch import load_file, save_file
from tensordict import TensorDict

from dagrl.data import DataProto
from dagrl.data.equality import equal
from dagrl.data.metrics import Max, Mean, Metrics, Min, Sum
from dagrl.errors import DataError, DataTypeError

ROOT = Path(__file__).parents[3]
VALUES = [
    None, True, 0, -(2**70), 1.5, -0.0, nan, inf, -inf, 1e-320, "", "ü\u2028\n", "\ud800", b"", b"\x00\xff",
    1 + 2j, (), (1, (2, [3])), [], {}, {"$": ["tuple"]}, {"a": {"$": 1}}, {1: "a", None: "b", (1, 2): "c"}, {1, 2},
    frozenset({"a"}), np.float32(1.5), np.int64(-3), np.bool(True), np.str_("a"), np.str_(""),
    np.datetime64("2026-01-01"), np.arange(6, dtype=np.int16).reshape(2, 3), np.array(["a", "bc"]),
    np.array([None, {"a": [1]}], dtype=object), np.empty((0, 2)), np.array(2.5), Mean(1.0, 2),
    Max(nan), Min(-inf), Sum(3), Metrics({"loss": Mean(2.0, 4)}),
]  # fmt: skip


def back(data, url):
    data.save_to_disk(url)
    return DataProto.load_from_disk(url)


@given(batches())
def test_batches_come_back(tmp_path_factory, data):
    again = back(data, str(tmp_path_factory.mktemp("disk") / "batch"))
    assert as_rows(again) == as_rows(data)
    assert again == data
    assert dtypes_of(again) == dtypes_of(data)
    assert list(again.batch.keys()) == list(data.batch.keys())


@given(OBJECTS)
def test_objects_come_back(tmp_path_factory, value):
    again = back(DataProto(None, {"o": [value]}, {"m": value}), str(tmp_path_factory.mktemp("disk") / "batch"))
    assert repr(again.non_tensor_batch["o"][0]) == repr(again.meta_info["m"]) == repr(value)
    assert again.batch is None


@pytest.mark.parametrize("value", VALUES, ids=lambda value: f"{type(value).__name__} {str(value)!r:.20}")
def test_values_come_back_as_what_they_are(tmp_path, value):
    again = back(DataProto(None, {"o": [value, [value]]}, {"m": value}), tmp_path / "batch")
    for found in (*again.non_tensor_batch["o"][:1], *again.non_tensor_batch["o"][1], again.meta_info["m"]):
        assert type(found) is type(value)
        assert equal(found, value)
        if isinstance(value, np.ndarray | np.generic):
            assert (found.dtype, found.shape) == (value.dtype, value.shape)
        else:
            assert repr(found) == repr(value)
    assert isinstance(again.meta_info["m"], type(value))


def test_tensors_in_objects_come_back(tmp_path):
    jagged = torch.nested.nested_tensor([torch.arange(3), torch.arange(1)], layout=torch.jagged)
    tensors = [random_tensor(dtype, (2, 3)) for dtype in DTYPES]
    again = back(
        DataProto(None, {"o": [{"t": tensor} for tensor in tensors]}, {"j": [jagged, tensors[0]]}), tmp_path / "b"
    )
    assert all(equal(row["t"], tensor) for row, tensor in zip(again.non_tensor_batch["o"], tensors, strict=True))
    assert equal(again.meta_info["j"], [jagged, tensors[0]])


@pytest.mark.parametrize(
    "data",
    [
        DataProto(),
        DataProto(TensorDict({}, batch_size=[4])),
        DataProto(TensorDict({"x": torch.ones(2, 3, 1)}, batch_size=[2, 3], device="cpu")),
        DataProto.from_dict({"x": torch.ones(2, requires_grad=True)}),
        DataProto.from_dict({"c": torch.tensor([1 + 2j]).conj(), "n": torch.tensor([1 + 2j]).conj().imag}),
        DataProto.from_dict({"x": torch.ones(3)}, meta_info={"temperature": nan}, auto_padding=True),
    ],
)
def test_odd_batches_come_back(tmp_path, data):
    again = back(data, tmp_path / "batch")
    assert again == data
    assert len(again) == len(data)
    if data.batch is not None:
        assert again.batch.batch_size == data.batch.batch_size
        assert again.batch.device == data.batch.device
        assert [v.requires_grad for v in again.batch.values()] == [v.requires_grad for v in data.batch.values()]


def test_any_file_system(any_url):
    data = DataProto.from_dict({"x": torch.arange(3)}, {"o": ["a", None, {}]})
    assert back(data, f"{any_url}/below/batch.pt") == data
    data.batch["x"] += 1
    assert back(data, f"{any_url}/below/batch.pt") == data
    with pytest.raises(DataError, match="there is no file"):
        DataProto.load_from_disk(f"{any_url}/none")


def test_file_urls(tmp_path):
    data = DataProto.from_dict({"x": torch.arange(3)})
    assert back(data, f"file://{tmp_path}/below/batch") == data
    assert DataProto.load_from_disk(tmp_path / "below" / "batch") == data


def test_two_columns_of_one_memory(tmp_path):
    whole = torch.arange(6).view(3, 2)
    data = DataProto.from_dict({"a": whole, "b": whole, "c": whole[:, 1]})
    assert back(data, tmp_path / "batch") == data


def test_other_tools_read_the_columns(tmp_path):
    DataProto.from_dict({"x": torch.arange(3)}, {"o": ["a", "b", "c"]}).save_to_disk(tmp_path / "batch")
    tensors = load_file(tmp_path / "batch")
    assert tensors["tensor/x"].tolist() == [0, 1, 2]
    assert json.loads(tensors["json"].numpy().tobytes())["objects"] == {"o": ["a", "b", "c"]}
    assert os.listdir(tmp_path) == ["batch"]


def test_long_texts_fit(tmp_path):
    """The header of safetensors ends at 100 MB."""
    data = DataProto(None, {"o": ["x" * 60_000_000, "y" * 60_000_000]})
    assert back(data, tmp_path / "batch") == data


# ---- what is refused


class Own:
    """A class that only pickle could write."""


@pytest.mark.parametrize("value", [Own(), Own, test_long_texts_fit, range(3), np.zeros(2, dtype="i4,f8")])
def test_values_without_a_form_are_named(tmp_path, value):
    with pytest.raises(DataTypeError, match=r"column `o`, row `1` cannot be saved: .* has no form without pickle"):
        DataProto(None, {"o": ["fine", [value]]}).save_to_disk(tmp_path / "batch")
    with pytest.raises(DataTypeError, match="meta_info key `m` cannot be saved"):
        DataProto(meta_info={"m": value}).save_to_disk(tmp_path / "batch")
    assert os.listdir(tmp_path) == []


def test_what_holds_itself_is_refused(tmp_path):
    endless = [1]
    endless.append(endless)
    with pytest.raises(DataTypeError, match="row `0` cannot be saved: it holds itself"):
        DataProto(None, {"o": [endless]}).save_to_disk(tmp_path / "batch")


def test_sparse_columns_are_named(tmp_path):
    data = DataProto(TensorDict({"x": torch.eye(2).to_sparse()}, batch_size=[2]))
    with pytest.raises(DataTypeError, match=r"column `x` is .* torch.sparse_coo"):
        data.save_to_disk(tmp_path / "batch")
    with pytest.raises(DataTypeError, match=r"column `o`, row `0` cannot be saved: the tensor in it is .*sparse"):
        DataProto(None, {"o": [torch.eye(2).to_sparse()]}).save_to_disk(tmp_path / "batch")


def test_names_of_columns_never_clash_with_those_of_the_file(tmp_path):
    jagged = torch.nested.nested_tensor([torch.arange(3), torch.arange(1)], layout=torch.jagged)
    names = ["a", "tensor/a", "offsets/tensor/a", "object/0", "/0", "json", "__metadata__"]
    tensors = {name: torch.full((2,), number) for number, name in enumerate(names)}
    data = DataProto(TensorDict({**tensors, "j": jagged}, batch_size=[2]), {"o": [torch.ones(1), jagged]})
    assert back(data, tmp_path / "batch") == data


class Harmful:
    """Writes a file when it is unpickled."""

    def __init__(self, path):
        self.path = path

    def __reduce__(self):
        return open, (self.path, "w")


def test_other_files_are_refused_and_never_unpickled(tmp_path):
    with pytest.raises(DataError, match="there is no file"):
        DataProto.load_from_disk(tmp_path / "none")
    (tmp_path / "pickle").write_bytes(pickle.dumps(Harmful(str(tmp_path / "harm"))))
    with pytest.raises(DataError, match="cannot be read as safetensors"):
        DataProto.load_from_disk(tmp_path / "pickle")
    assert not (tmp_path / "harm").exists()
    save_file({"x": torch.ones(2)}, tmp_path / "foreign")
    with pytest.raises(DataError, match="was not written by"):
        DataProto.load_from_disk(tmp_path / "foreign")
    save_file({"json": torch.ones(2)}, tmp_path / "later", metadata={"kind": "dagrl DataProto", "format": "9"})
    with pytest.raises(DataError, match="has format 9, this version reads 1"):
        DataProto.load_from_disk(tmp_path / "later")
    with pytest.raises(DataError, match="cannot be read"):
        DataProto.load_from_disk(tmp_path)
    DataProto.from_dict({"x": torch.arange(1000)}).save_to_disk(tmp_path / "cut")
    (tmp_path / "cut").write_bytes((tmp_path / "cut").read_bytes()[:2000])
    with pytest.raises(DataError, match="cannot be read"):
        DataProto.load_from_disk(tmp_path / "cut")


def test_a_failed_save_leaves_what_was_there(tmp_path):
    data = DataProto(None, {"o": ["a"]})
    data.save_to_disk(tmp_path / "batch")
    with pytest.raises(DataError):
        DataProto(None, {"o": [Own()]}).save_to_disk(tmp_path / "batch")
    assert DataProto.load_from_disk(tmp_path / "batch") == data
    with pytest.raises(DataError, match="cannot be written"):
        data.save_to_disk(tmp_path / "batch" / "below")
    (tmp_path / "batch2" / "below").mkdir(parents=True)
    with pytest.raises(DataError, match="cannot be written"):
        data.save_to_disk(tmp_path / "batch2" / "below")
    assert os.listdir(tmp_path / "batch2") == ["below"]
    assert sorted(os.listdir(tmp_path)) == ["batch", "batch2"]


def test_a_save_that_ends_half_way_leaves_what_was_there(tmp_path):
    data = DataProto(None, {"o": ["a"]})
    data.save_to_disk(tmp_path / "batch")
    code = """
import resource, sys, torch
from dagrl.data import DataProto
resource.setrlimit(resource.RLIMIT_FSIZE, (100_000, 100_000))
DataProto.from_dict({"x": torch.ones(100_000)}).save_to_disk(sys.argv[1])
"""
    ended = subprocess.run([sys.executable, "-c", code, tmp_path / "batch"], capture_output=True, text=True, cwd=ROOT)
    assert "cannot be written" in ended.stderr
    assert DataProto.load_from_disk(tmp_path / "batch") == data
    assert os.listdir(tmp_path) == ["batch"]


@given(st.integers(0, 3))
def test_rows_without_columns(tmp_path_factory, rows):
    data = DataProto.from_dict({"x": torch.ones(3, 2)}, {"o": [1, 2, 3]})[:rows]
    assert back(data, tmp_path_factory.mktemp("disk") / "batch") == data
