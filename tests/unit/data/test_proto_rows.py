"""Choosing, cutting, ordering and repeating the rows of a DataProto."""

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from dagrl.data import DataProto, DataProtoItem
from dagrl.data.proto import pad_dataproto_to_divisor, unpad_dataproto
from dagrl.errors import DataError

DTYPES = [torch.bool, torch.bfloat16, torch.float16, torch.float32, torch.int8, torch.uint8, torch.uint32, torch.int64]


def make(rows):
    """A batch whose tensors, wide tensors and objects of a row all carry the row's number."""
    number = torch.arange(rows)
    tensors = {"id": number, "wide": (number.unsqueeze(1) + torch.zeros(3)).bfloat16(), "even": number % 2 == 0}
    objects = {"nested": [[i, [i]] for i in range(rows)], "dict": [{"i": i, "nan": float("nan")} for i in range(rows)]}
    return DataProto.from_dict(tensors, objects, {"name": "x", "metrics": {"loss": 1.0}, "nan": float("nan")})


def rows_of(data):
    """The rows' numbers, after checking that all columns agree on them and kept their dtype and width."""
    numbers = data.batch["id"].tolist()
    assert data.batch["wide"].dtype == torch.bfloat16
    assert data.batch["wide"].shape == (len(numbers), 3)
    assert data.batch["wide"][:, 2].tolist() == numbers
    assert data.batch["even"].tolist() == [number % 2 == 0 for number in numbers]
    assert data.non_tensor_batch["nested"].tolist() == [[i, [i]] for i in numbers]
    assert [value["i"] for value in data.non_tensor_batch["dict"]] == numbers
    assert all(column.shape == (len(numbers),) for column in data.non_tensor_batch.values())
    assert all(column.dtype == object for column in data.non_tensor_batch.values())
    assert len(data) == len(numbers)
    return numbers


# ---- indexing


@pytest.mark.parametrize(
    "index", [2, -2, np.int64(2), torch.tensor(2), np.array(2), torch.tensor(2, dtype=torch.uint8)]
)
def test_one_row_is_an_item(index):
    item = make(4)[index]
    assert isinstance(item, DataProtoItem)
    assert item.batch["id"].item() == 2
    assert item.batch["wide"].shape == (3,)
    assert item.non_tensor_batch["nested"] == [2, [2]]
    assert item.meta_info["name"] == "x"


@pytest.mark.parametrize(
    ("index", "expected"),
    [
        (slice(1, 3), [1, 2]),
        (slice(None), [0, 1, 2, 3]),
        (slice(-2, None), [2, 3]),
        (slice(None, None, 2), [0, 2]),
        (slice(None, None, -1), [3, 2, 1, 0]),
        (slice(3, 0, -2), [3, 1]),
        (slice(9, 20), []),
        ([2, 0, 2], [2, 0, 2]),
        ([-1], [3]),
        ((1, 3), [1, 3]),
        (range(2), [0, 1]),
        ([], []),
        (np.array([3, 1]), [3, 1]),
        (np.array([3, -4], dtype=np.int8), [3, 0]),
        (np.array([3, 1], dtype=np.uint8), [3, 1]),
        (torch.tensor([3, 1]), [3, 1]),
        (torch.tensor([3, -3], dtype=torch.int32), [3, 1]),
        ([np.int64(1), torch.tensor(2)], [1, 2]),
        ([True, False, True, False], [0, 2]),
        ([False] * 4, []),
        (np.array([False, True, True, False]), [1, 2]),
        (torch.tensor([False, True, True, False]), [1, 2]),
        (torch.tensor([], dtype=torch.int64), []),
    ],
)
def test_many_rows_are_a_dataproto(index, expected):
    data = make(4)
    assert rows_of(data[index]) == expected
    assert rows_of(data.select_idxs(index)) == expected
    assert rows_of(data) == [0, 1, 2, 3]
    assert data[index].meta_info["metrics"] == {"loss": 1.0}


@pytest.mark.parametrize("index", [4, -5, [0, 4], torch.tensor([-5])])
def test_rows_outside(index):
    with pytest.raises(IndexError, match=r"row (4|-5) is outside a batch of 4 rows"):
        make(4)[index]


@pytest.mark.parametrize(
    "index", [1.5, "id", None, True, np.bool(True), torch.tensor(True), [1.5], torch.ones(4), [True, 2], ["a"], {1, 2}]
)
def test_what_chooses_no_rows(index):
    with pytest.raises(TypeError):
        make(4)[index]


@pytest.mark.parametrize("index", [[True, False], torch.ones(5, dtype=torch.bool), [[1, 2]], torch.zeros(4, 1).long()])
def test_indices_of_another_shape(index):
    with pytest.raises(DataError):
        make(4)[index]


def test_iteration_gives_each_row_once():
    assert [item.non_tensor_batch["nested"][0] for item in make(3)] == [0, 1, 2]


def test_slice_method():
    data = make(5)
    assert rows_of(data.slice(1, 3)) == [1, 2]
    assert rows_of(data.slice()) == [0, 1, 2, 3, 4]
    assert rows_of(data.slice(end=4, step=3)) == [0, 3]


def test_mask_then_chunk():
    for mask in ([True, False, True, True], np.array([1, 0, 1, 1], dtype=bool), torch.tensor([1, 0, 1, 1]).bool()):
        assert [rows_of(part) for part in make(4)[mask].chunk(3)] == [[0], [2], [3]]


@pytest.mark.parametrize("dtype", DTYPES)
def test_an_empty_selection_keeps_columns_and_dtypes(dtype):
    data = DataProto.from_dict({"x": torch.ones(3, 2).to(dtype)}, {"o": [1, 2, 3]})
    for empty in (data[[]], data[0:0], data[[False] * 3], data.repeat(0), *data[[]].chunk(2), *data[[]].split(2)):
        assert len(empty) == 0
        assert empty.batch["x"].dtype == dtype
        assert empty.batch["x"].shape == (0, 2)
        assert empty.non_tensor_batch["o"].shape == (0,)
        assert empty.non_tensor_batch["o"].dtype == object


@pytest.mark.parametrize("dtype", DTYPES)
def test_dtypes_survive_every_row_method(dtype):
    data = DataProto.from_dict({"x": torch.tensor([0, 1, 1]).to(dtype)})
    again = DataProto.concat(data.chunk(3))
    assert again == data
    data.reorder([2, 0, 1])
    results = (
        data,
        data.repeat(2),
        data.sample_level_repeat([1, 0, 2]),
        pad_dataproto_to_divisor(data, 2)[0],
        data[[1]],
    )
    assert {result.batch["x"].dtype for result in results} == {dtype}
    assert data.batch["x"].float().tolist() == [1.0, 0.0, 1.0]


# ---- chunk, split


@given(rows=st.integers(0, 17), n=st.integers(1, 5))
def test_concat_of_chunks_is_the_batch(rows, n):
    data = make(rows)
    parts = data.chunk(n, uneven=True)
    assert [len(part) for part in parts] == [len(part) for part in np.array_split(range(rows), n)]
    assert [row for part in parts for row in rows_of(part)] == list(range(rows))
    assert DataProto.concat(parts) == data
    assert rows_of(data) == list(range(rows))


@given(rows=st.integers(0, 17), size=st.integers(1, 20))
def test_concat_of_splits_is_the_batch(rows, size):
    data = make(rows)
    parts = data.split(size)
    assert [len(part) for part in parts[:-1]] == [size] * (len(parts) - 1)
    assert rows == 0 or 0 < len(parts[-1]) <= size
    assert DataProto.concat(parts) == data


@pytest.mark.parametrize(("rows", "n", "sizes"), [(10, 4, [3, 3, 2, 2]), (4, 3, [2, 1, 1]), (2, 4, [1, 1, 0, 0])])
def test_uneven_chunks(rows, n, sizes):
    parts = make(rows).chunk(n, uneven=True)
    assert [len(rows_of(part)) for part in parts] == sizes
    with pytest.raises(ValueError, match=f"{rows} rows do not divide into {n} equal chunks"):
        make(rows).chunk(n)


def test_even_chunks():
    assert [rows_of(part) for part in make(6).chunk(3)] == [[0, 1], [2, 3], [4, 5]]


def test_chunks_have_their_own_meta_info():
    first, second = (data := make(4)).chunk(2)
    first.meta_info["extra"] = 1
    assert "extra" not in second.meta_info
    assert "extra" not in data.meta_info


@pytest.mark.parametrize("number", [0, -1])
def test_numbers_too_small(number):
    data = make(4)
    with pytest.raises(ValueError, match=f"`chunks` is {number}"):
        data.chunk(number)
    with pytest.raises(ValueError, match=f"`split_size` is {number}"):
        data.split(number)
    with pytest.raises(ValueError, match=f"`size_divisor` is {number}"):
        pad_dataproto_to_divisor(data, number)
    with pytest.raises(ValueError, match=f"`mini_batch_size` is {number}"):
        data.make_iterator(number, 1)
    with pytest.raises(ValueError, match="`repeat_times` is -1"):
        data.repeat(-1)
    with pytest.raises(ValueError, match="`epochs` is -1"):
        data.make_iterator(1, -1)


# ---- reorder


@given(st.integers(0, 12).flatmap(lambda rows: st.permutations(range(rows))))
def test_a_permutation_and_its_inverse_are_the_identity(order):
    data, before = make(len(order)), make(len(order))
    indices = torch.tensor(order, dtype=torch.int64)
    assert data.reorder(indices) is None
    assert rows_of(data) == list(order)
    data.reorder(indices.argsort())
    assert data == before
    assert indices.tolist() == list(order)


@pytest.mark.parametrize("order", [[0, 0, 1], [0, 1], [0, 1, 2, 0]])
def test_reorder_never_loses_a_row(order):
    data = make(3)
    with pytest.raises(ValueError, match="each of the 3 rows once"):
        data.reorder(order)
    assert rows_of(data) == [0, 1, 2]


def test_reorder_takes_negative_positions():
    data = make(3)
    data.reorder([-1, 0, -2])
    assert rows_of(data) == [2, 0, 1]


# ---- repeat


def test_repeat():
    data = make(2)
    assert rows_of(data.repeat()) == [0, 0, 1, 1]
    assert rows_of(data.repeat(2)) == [0, 0, 1, 1]
    assert rows_of(data.repeat(3, interleave=False)) == [0, 1, 0, 1, 0, 1]
    assert rows_of(data.repeat(1)) == [0, 1]
    assert rows_of(make(0).repeat(3)) == []
    assert rows_of(data) == [0, 1]


@pytest.mark.parametrize(
    "times", [[2, 0, 1], (2, 0, 1), np.array([2, 0, 1]), torch.tensor([2, 0, 1], dtype=torch.int32)]
)
def test_sample_level_repeat(times):
    assert rows_of(make(3).sample_level_repeat(times)) == [0, 0, 2]


@pytest.mark.parametrize("times", [[1, 2], [1, -1, 1], [0.5, 1, 1], torch.ones(3, dtype=torch.bool), [[1], [1], [1]]])
def test_sample_level_repeat_refuses(times):
    with pytest.raises(ValueError, match="repeat_times"):
        make(3).sample_level_repeat(times)


def test_sample_level_repeat_of_no_rows():
    assert rows_of(make(0).sample_level_repeat([])) == []


@pytest.mark.parametrize(
    "repeated",
    [
        lambda data: data.repeat(2),
        lambda data: data.repeat(2, interleave=False),
        lambda data: data.sample_level_repeat([2, 2]),
        lambda data: data.repeat(1),
    ],
)
def test_repeated_dicts_are_not_shared(repeated):
    data = make(2)
    result = repeated(data)
    everything = [*data.non_tensor_batch["dict"], *result.non_tensor_batch["dict"]]
    assert len({id(value) for value in everything}) == len(everything)
    assert result.non_tensor_batch["nested"][0][1] is not data.non_tensor_batch["nested"][0][1]


# ---- padding


def test_padding_goes_round_from_the_first_row():
    data = make(3)
    padded, added = pad_dataproto_to_divisor(data, 8)
    assert rows_of(padded) == [0, 1, 2, 0, 1, 2, 0, 1]
    assert added == 5
    assert unpad_dataproto(padded, added) == data
    assert rows_of(data) == [0, 1, 2]
    dicts = padded.non_tensor_batch["dict"]
    assert len({id(value) for value in dicts}) == 8
    assert dicts[0] is data.non_tensor_batch["dict"][0]


@given(rows=st.integers(0, 12), divisor=st.integers(1, 9))
def test_padding_is_the_least_that_divides(rows, divisor):
    data = make(rows)
    padded, added = pad_dataproto_to_divisor(data, divisor)
    assert 0 <= added < divisor
    assert len(padded) == rows + (added if rows else 0)
    assert len(padded) % divisor == 0
    assert padded is not data
    assert unpad_dataproto(padded, added) == data


def test_no_rows_need_no_padding():
    padded, added = pad_dataproto_to_divisor(make(0), 8)
    assert (rows_of(padded), added) == ([], 0)


@pytest.mark.parametrize("size", [-1, 4])
def test_unpad_refuses(size):
    with pytest.raises(ValueError, match=f"cannot remove {size} padding rows from a batch of 3 rows"):
        unpad_dataproto(make(3), size)


def test_unpad_everything():
    assert rows_of(unpad_dataproto(make(3), 3)) == []


# ---- iterator


def test_iterator_in_order():
    parts = list(make(5).make_iterator(2, epochs=2))
    assert [rows_of(part) for part in parts] == [[0, 1], [2, 3], [4], [0, 1], [2, 3], [4]]
    assert parts[0].meta_info["name"] == "x"


def test_iterator_drops_the_short_last():
    parts = make(5).make_iterator(2, epochs=1, dataloader_kwargs={"drop_last": True})
    assert [rows_of(part) for part in parts] == [[0, 1], [2, 3]]


def shuffled(seed):
    parts = make(12).make_iterator(4, 2, seed, {"shuffle": True})
    return [rows_of(part) for part in parts]


def test_iterator_shuffles_by_seed():
    assert shuffled(1) == shuffled(1)
    assert shuffled(1) != shuffled(2)
    order = [row for part in shuffled(1) for row in part]
    assert sorted(order[:12]) == sorted(order[12:]) == list(range(12))
    assert order[:12] != order[12:]


def test_iterator_leaves_the_global_generator():
    state = torch.get_rng_state()
    shuffled(1)
    assert torch.equal(state, torch.get_rng_state())


def test_iterator_without_rows_or_epochs():
    assert list(make(0).make_iterator(4, 3)) == []
    assert list(make(3).make_iterator(4, 0)) == []


def test_iterator_refuses_unknown_options():
    with pytest.raises(ValueError, match="not `num_workers`"):
        make(3).make_iterator(1, 1, dataloader_kwargs={"num_workers": 2})


# ---- batches without columns of a kind


def test_rows_without_tensors():
    data = DataProto(None, {"o": [[1, 2], [3, 4], None]})
    assert [part.non_tensor_batch["o"].tolist() for part in data.chunk(2, uneven=True)] == [[[1, 2], [3, 4]], [None]]
    assert data.repeat(2).non_tensor_batch["o"].tolist() == [[1, 2], [1, 2], [3, 4], [3, 4], None, None]
    assert data[1].non_tensor_batch == {"o": [3, 4]}
    assert data[1].batch is None


def test_rows_without_any_column():
    from tensordict import TensorDict

    data = DataProto(TensorDict({}, batch_size=[4]))
    assert [len(part) for part in data.chunk(3, uneven=True)] == [2, 1, 1]
    assert len(data.repeat(2)) == 8
    assert DataProto.concat(data.chunk(2)) == data
    assert [len(part) for part in DataProto().chunk(2)] == [0, 0]


def test_several_batch_dims():
    data = DataProto.from_dict({"x": torch.arange(12).reshape(4, 3)}, num_batch_dims=2)
    assert data.batch.batch_size == (4, 3)
    assert data[[2]].batch["x"].tolist() == [[6, 7, 8]]
    again = DataProto.concat(data.chunk(2))
    assert again == data
    assert again.batch.batch_size == (4, 3)


def test_a_column_edited_to_another_length_is_found_before_rows_are_lost():
    data = make(3)
    data.non_tensor_batch["late"] = np.array([1, 2, 3, 4], dtype=object)
    for method in (lambda: data.chunk(3), lambda: data[0:2], lambda: data.repeat(2), lambda: DataProto.concat([data])):
        with pytest.raises(ValueError, match="object column `late` has 4 rows, the batch has 3"):
            method()


def test_balancing_by_length_and_back_changes_no_statistic():
    lengths = torch.tensor([5, 1, 4, 1, 3, 2])
    data = DataProto.from_dict({"lengths": lengths, "ids": torch.arange(6)}, {"o": list("abcdef")})
    order = [0, 3, 1, 2, 5, 4]  # parts of equal work: 5 + 1 + 1 and 4 + 2 + 3, rows of no fixed order
    balanced = data.select()
    balanced.reorder(order)
    parts = balanced.chunk(2)
    assert sorted(int(part.batch["lengths"].sum()) for part in parts) == [7, 9]
    whole = DataProto.concat(parts)
    assert whole.batch["lengths"].float().mean() == lengths.float().mean()
    whole.reorder(torch.tensor(order).argsort())
    assert whole == data


def test_iteration_without_shuffling_copies_nothing():
    data = make(5)
    first = next(data.make_iterator(2, 1))
    assert first.batch["id"].data_ptr() == data.batch["id"].data_ptr()
