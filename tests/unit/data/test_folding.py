"""Rows folded into groups and unfolded again, and long rows cut into several."""

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from dagrl.data import DataProto, fold_batch_dim, unfold_batch_dim
from dagrl.errors import DataError, DataTypeError, MissingColumnError


def make(rows):
    tensors = {"a": torch.arange(rows), "b": torch.arange(rows * 6).view(rows, 2, 3)}
    return DataProto.from_dict(tensors, {"o": [[i] for i in range(rows)], "s": [str(i) for i in range(rows)]}, {"m": 1})


@given(st.integers(1, 4), st.integers(0, 4))
def test_unfolding_undoes_folding(groups, size):
    data = make(groups * size)
    folded = fold_batch_dim(data, groups)
    assert len(folded) == groups
    assert folded.batch.batch_size == (groups,)
    assert folded.batch["a"].shape == (groups, size)
    assert folded.batch["b"].shape == (groups, size, 2, 3)
    assert folded.batch["a"].tolist() == [[g * size + i for i in range(size)] for g in range(groups)]
    assert folded.non_tensor_batch["o"].shape == (groups,)
    assert [list(each) for each in folded.non_tensor_batch["s"]] == [
        [str(g * size + i) for i in range(size)] for g in range(groups)
    ]
    assert unfold_batch_dim(folded) == data
    assert data == make(groups * size)


def test_folded_batches_are_chosen_sent_and_concatenated():
    folded = fold_batch_dim(make(6), 3)
    assert unfold_batch_dim(DataProto.concat(folded.chunk(3))) == make(6)
    assert unfold_batch_dim(folded[[2, 0]]) == make(6)[[4, 5, 0, 1]]


def test_folding_what_does_not_divide():
    with pytest.raises(DataError, match="6 rows do not fold into 4 groups"):
        fold_batch_dim(make(6), 4)
    with pytest.raises(DataError, match="`new_batch_size` is 0"):
        fold_batch_dim(make(6), 0)


def test_unfolding_what_was_not_folded_here():
    data = DataProto.from_dict({"x": torch.arange(12).view(2, 3, 2)}, {"o": [(1, 2, 3), [4, 5, 6]]})
    flat = unfold_batch_dim(data)
    assert flat.batch["x"].tolist() == [[0, 1], [2, 3], [4, 5], [6, 7], [8, 9], [10, 11]]
    assert flat.non_tensor_batch["o"].tolist() == [1, 2, 3, 4, 5, 6]
    deep = unfold_batch_dim(DataProto.from_dict({"x": torch.arange(8).view(2, 2, 2)}, {"o": [[[1, 2], [3, 4]]] * 2}), 3)
    assert deep.batch["x"].tolist() == list(range(8))
    assert deep.non_tensor_batch["o"].tolist() == [1, 2, 3, 4] * 2
    assert unfold_batch_dim(data, 1) == data
    assert unfold_batch_dim(DataProto(None, {"o": [[1], [2, 3]]})).non_tensor_batch["o"].tolist() == [1, 2, 3]


@pytest.mark.parametrize(
    ("tensors", "objects", "message"),
    [
        ({"x": torch.ones(2, 3), "y": torch.ones(2, 2)}, {}, r"column `y` of shape \(2, 2\) lacks the 2 batch dims"),
        ({"x": torch.ones(2)}, {}, r"column `x` of shape \(2,\) lacks 2 batch dims"),
        ({"x": torch.ones(2, 3)}, {"o": [[1, 2, 3], [4, 5]]}, "row 1 of column `o` has 2 objects, its tensors 3"),
        ({"x": torch.ones(2, 3)}, {"o": ["abc", "def"]}, "row 0 of column `o` is a str, not several objects"),
    ],
)
def test_unfolding_what_does_not_fit(tensors, objects, message):
    with pytest.raises(DataError, match=message):
        unfold_batch_dim(DataProto.from_dict(tensors, objects))


# ---- unfold_column_chunks


def test_columns_are_cut_along_their_second_dim():
    data = DataProto.from_dict(
        {"x": torch.arange(16).view(2, 4, 2), "y": torch.tensor([1, 2])},
        {"l": [[1, 2], [3, 4]], "t": ["abcd", "efgh"], "n": [np.arange(2), np.arange(4)], "d": [{"a": 1}, None]},
        {"m": 1},
    )
    before = data.select(deepcopy=True)
    cut = data.unfold_column_chunks(2, ["x", "l", "t", "n"])
    assert cut.batch["x"].tolist() == torch.arange(16).view(4, 2, 2).tolist()
    assert cut.batch["y"].tolist() == [1, 1, 2, 2]
    assert cut.non_tensor_batch["l"].tolist() == [[1], [2], [3], [4]]
    assert cut.non_tensor_batch["t"].tolist() == ["ab", "cd", "ef", "gh"]
    assert [each.tolist() for each in cut.non_tensor_batch["n"]] == [[0], [1], [0, 1], [2, 3]]
    assert cut.non_tensor_batch["d"].tolist() == [{"a": 1}, {"a": 1}, None, None]
    assert cut.non_tensor_batch["d"][0] is not cut.non_tensor_batch["d"][1]
    assert cut.meta_info == {"m": 1}
    assert data == before
    assert data.unfold_column_chunks(2) == data.repeat(2)
    assert data.unfold_column_chunks(1, ["x", "l"]) == data


@pytest.mark.parametrize(
    ("keys", "error", "message"),
    [
        (["zz"], MissingColumnError, "no column `zz`; there are `x`, `y`, `l`, `d`"),
        (["x"], DataError, r"dim 1 of column `x` of shape \(2, 4\) does not divide by 3"),
        (["y"], DataError, r"dim 1 of column `y` of shape \(2,\) does not divide"),
        (["l"], DataError, "row 1 of column `l` has length 2, which does not divide by 3"),
        (["d"], DataTypeError, "row 0 of column `d` is a dict, which cannot be cut"),
    ],
)
def test_what_cannot_be_cut_is_named(keys, error, message):
    data = DataProto.from_dict({"x": torch.ones(2, 4), "y": torch.ones(2)}, {"l": [[1, 2, 3], [4, 5]], "d": [{}, {}]})
    with pytest.raises(error, match=message):
        data.unfold_column_chunks(3, keys)
    with pytest.raises(DataError, match="`repeat_times` is -1"):
        data.unfold_column_chunks(-1)
