"""Every method that chooses rows, against plain lists, for every dtype and for dense, strided and jagged columns."""

import copy
import pickle

import torch
from batches import as_rows, batches, dtypes_of
from hypothesis import given
from hypothesis import strategies as st

from dagrl.data import DataProto, pad_dataproto_to_divisor, unpad_dataproto


@given(batches(), st.integers(1, 4))
def test_concat_of_chunks_is_the_batch(data, parts):
    rows = as_rows(data)
    chunks = data.chunk(parts, uneven=True)
    size, longer = divmod(len(rows), parts)
    assert [len(chunk) for chunk in chunks] == [size + (part < longer) for part in range(parts)]
    assert [row for chunk in chunks for row in as_rows(chunk)] == rows
    whole = DataProto.concat(chunks)
    assert whole == data
    assert as_rows(whole) == rows == as_rows(data)
    assert all(dtypes_of(chunk) == dtypes_of(data) for chunk in [*chunks, whole])


@given(batches(), st.integers(1, 20))
def test_concat_of_splits_is_the_batch(data, size):
    rows, parts = as_rows(data), data.split(size)
    assert [as_rows(part) for part in parts] == ([rows[i : i + size] for i in range(0, len(rows), size)] or [[]])
    assert DataProto.concat(parts) == data
    assert all(dtypes_of(part) == dtypes_of(data) for part in parts)


@given(batches(), st.data())
def test_chosen_rows(data, draw):
    rows = as_rows(data)
    n = len(rows)
    index = draw.draw(st.lists(st.integers(-n, n - 1), max_size=20) if n else st.just([]))
    mask = draw.draw(st.lists(st.booleans(), min_size=n, max_size=n))
    bounds = st.none() | st.integers(-20, 20)
    cut = slice(draw.draw(bounds), draw.draw(bounds), draw.draw(st.sampled_from([None, 1, 2, 3, -1, -2])))
    for chosen, expected in (
        (data[index], [rows[i] for i in index]),
        (data[torch.tensor(index, dtype=torch.int32)], [rows[i] for i in index]),
        (data[torch.tensor(mask, dtype=torch.bool)], [row for row, keep in zip(rows, mask, strict=True) if keep]),
        (data[cut], rows[cut]),
    ):
        assert as_rows(chosen) == expected
        assert dtypes_of(chosen) == dtypes_of(data)
    assert as_rows(data) == rows


@given(batches(), st.integers(0, 3), st.booleans(), st.data())
def test_repeated_rows(data, times, interleave, draw):
    rows = as_rows(data)
    expected = [row for row in rows for _ in range(times)] if interleave else rows * times
    assert as_rows(data.repeat(times, interleave)) == expected
    counts = draw.draw(st.lists(st.integers(0, 3), min_size=len(rows), max_size=len(rows)))
    assert as_rows(data.sample_level_repeat(counts)) == [
        row for row, n in zip(rows, counts, strict=True) for _ in range(n)
    ]
    assert as_rows(data) == rows


@given(batches(), st.randoms(use_true_random=False))
def test_reordered_rows_and_back(data, random):
    rows, before = as_rows(data), copy.deepcopy(data)
    order = random.sample(range(len(rows)), len(rows))
    data.reorder(order)
    assert as_rows(data) == [rows[i] for i in order]
    data.reorder(torch.tensor(order, dtype=torch.int64).argsort())
    assert data == before
    assert as_rows(data) == rows


@given(batches(least=1), st.integers(1, 9))
def test_padded_rows(data, divisor):
    rows = as_rows(data)
    padded, added = pad_dataproto_to_divisor(data, divisor)
    assert as_rows(padded) == [rows[i % len(rows)] for i in range(len(rows) + added)]
    assert unpad_dataproto(padded, added) == data
    data.padding(2)
    data.padding(1, "first")
    assert as_rows(data) == [*rows, rows[-1], rows[-1], rows[0]]


@given(batches(), st.integers(1, 6), st.booleans(), st.booleans())
def test_mini_batches(data, size, shuffle, drop_last):
    rows = as_rows(data)
    options = {"shuffle": shuffle, "drop_last": drop_last}
    parts = [as_rows(part) for part in data.make_iterator(size, 1, 3, options)]
    ends = len(rows) - len(rows) % size if drop_last else len(rows)
    lengths = [min(size, ends - start) for start in range(0, ends, size)]
    assert [len(part) for part in parts] == lengths
    seen = [row["number"] for part in parts for row in part]
    assert len(set(seen)) == len(seen)
    if not shuffle:
        assert [row for part in parts for row in part] == rows[:ends]


@given(batches())
def test_single_rows(data):
    rows = as_rows(data)
    for number, row in enumerate(rows):
        item = data[number]
        assert item.batch.batch_size == ()
        for name, tensor in item.batch.items():
            assert (tensor.dtype, tuple(tensor.shape)) == row[name][:2]
        again = pickle.loads(pickle.dumps(item))
        assert as_rows_of_item(again) == as_rows_of_item(item)


def as_rows_of_item(item):
    """One row as a batch of one says it."""
    tensors = {name: tensor.unsqueeze(0) for name, tensor in item.batch.items()}
    return as_rows(DataProto.from_dict(tensors, {name: [value] for name, value in item.non_tensor_batch.items()}))


@given(batches())
def test_columns_chosen_joined_and_copied(data):
    rows = as_rows(data)
    left = data.select(["jagged", "dense"], ["number"])
    assert as_rows(left) == [{name: row[name] for name in ("jagged", "dense", "number")} for row in rows]
    assert as_rows(data.select(deepcopy=True)) == rows
    assert data.select(deepcopy=True) == data == copy.deepcopy(data)
    other = pickle.loads(pickle.dumps(data))
    joined = left.union(other)
    assert sorted(joined.batch.keys()) == sorted(data.batch.keys())
    assert joined.union(data) == joined
    other.rename("jagged", "ragged")
    taken = other.pop(["ragged"])
    assert as_rows(taken) == [{"ragged": row["jagged"]} for row in rows]
    assert as_rows(DataProto.from_tensordict(data.to_tensordict())) == rows
