"""Jagged columns: equal by content, combinable after every method, refused by name where torch has no such tensor."""

import pickle

import pytest
import torch
from batches import DTYPES, jagged_tensor, rows_of
from hypothesis import given
from hypothesis import strategies as st
from tensordict import TensorDict

from dagrl.data import DataProto, DataProtoItem, fold_batch_dim, unfold_batch_dim
from dagrl.data.equality import tensors_equal
from dagrl.errors import DataError

LENGTHS = st.lists(st.integers(0, 3), max_size=4)
KINDS = st.sampled_from(["flat", "wide", "turned", "holes"])


def jagged(*lengths, dtype=torch.float32):
    rows = [torch.arange(length).to(dtype) + 10 * i for i, length in enumerate(lengths)]
    return torch.nested.nested_tensor(rows, layout=torch.jagged)


def make():
    """Two columns of one set of offsets, as ids and their log-probs have."""
    ids = jagged(3, 1, 0, 2, dtype=torch.int64)
    return DataProto(TensorDict({"ids": ids, "logprobs": ids * -0.5}, batch_size=[4]), {"o": ["a", "b", "c", "d"]})


def lists(tensor):
    return [row.tolist() for row in tensor.unbind()]


# ---- equality


@given(st.sampled_from(DTYPES), LENGTHS, LENGTHS, KINDS, KINDS, st.booleans())
def test_equality_is_that_of_the_rows(dtype, first, second, kind, other_kind, same):
    """Brute force: equal iff dtype, ragged dim and every row are."""
    if same:
        second, other_kind = first, kind
    kind, other_kind = (k if lengths else "flat" for k, lengths in ((kind, first), (other_kind, second)))
    left, right = jagged_tensor(dtype, first, kind), jagged_tensor(dtype, second, other_kind)
    if not dtype.is_floating_point and not dtype.is_complex:  # NaNs of any bits are equal
        shapes = [(t.ndim, [type(size) is int for size in t.shape]) for t in (left, right)]
        assert tensors_equal(left, right) == (rows_of(left) == rows_of(right) and shapes[0] == shapes[1])
    elif same:
        assert tensors_equal(left, right)


@given(st.sampled_from([torch.int64, torch.uint8, torch.bfloat16, torch.float32]), LENGTHS, KINDS, st.data())
def test_one_changed_value_is_seen_where_a_row_holds_it(dtype, lengths, kind, data):
    left = jagged_tensor(torch.uint8, lengths, kind if lengths else "flat")
    values = (left.values() % 50).to(dtype)
    changed = values.clone()
    if changed.numel():
        changed.view(-1)[data.draw(st.integers(0, changed.numel() - 1))] += 1
    dim = 2 if values.ndim == 2 and kind == "turned" else 1
    one, other, same = (
        torch.nested.nested_tensor_from_jagged(v, left.offsets(), lengths=left.lengths(), jagged_dim=dim)
        for v in (values, changed, values.clone())
    )
    assert tensors_equal(one, same)
    assert tensors_equal(one, other) == (rows_of(one) == rows_of(other))


def test_equal_offsets_need_not_be_the_same_ones():
    assert tensors_equal(jagged(2, 1), jagged(2, 1))
    assert not tensors_equal(jagged(2, 1), jagged(1, 2))
    assert not tensors_equal(jagged(2, 1), jagged(2, 1) + 1)
    assert not tensors_equal(jagged(2, 1), jagged(2, 1, 0))
    assert not tensors_equal(jagged(2, 1), jagged(2, 1, dtype=torch.float64))
    assert not tensors_equal(jagged(2, 2), torch.tensor([[0.0, 1.0], [10.0, 11.0]]))
    nan = jagged(2, 1) * float("nan")
    assert tensors_equal(nan, jagged(2, 1) * float("nan"))
    strided = [torch.nested.nested_tensor([torch.ones(2), torch.ones(3)]) for _ in range(2)]
    assert tensors_equal(*strided)
    assert not tensors_equal(strided[0], jagged(2, 3))


# ---- what comes out of methods can be combined


@pytest.mark.parametrize(
    "method",
    [
        lambda data: data[1:],
        lambda data: data[::2],
        lambda data: data[[3, 0]],
        lambda data: data[[]],
        lambda data: data.chunk(2)[1],
        lambda data: data.repeat(2),
        lambda data: data.sample_level_repeat([0, 2, 1, 0]),
        lambda data: DataProto.concat([data, data]),
        lambda data: DataProto.concat(data.chunk(4)),
        lambda data: pickle.loads(pickle.dumps(data)),
        lambda data: data.unfold_column_chunks(1, ["ids", "logprobs"]),
        lambda data: data.select(deepcopy=True),
        lambda data: data.to("cpu"),
    ],
)
def test_columns_of_equal_lengths_stay_combinable(method):
    batch = method(make()).batch
    assert lists(batch["ids"] * -0.5 - batch["logprobs"]) == [[0.0] * len(row) for row in lists(batch["ids"])]


def test_chunks_are_views():
    data = make()
    part = data.chunk(2)[0]
    part.batch["ids"].values()[0] = 99
    assert data.batch["ids"].values()[0] == 99


def test_an_item_holds_its_row():
    item = make()[1]
    assert item.batch["ids"].tolist() == [10]
    assert item.batch["ids"].layout is torch.strided


# ---- cut rows


def test_rows_are_cut_along_their_length():
    data = DataProto(TensorDict({"x": jagged(4, 0, 2), "y": torch.arange(3)}, batch_size=[3]), {"o": ["a", "b", "c"]})
    cut = data.unfold_column_chunks(2, ["x"])
    assert lists(cut.batch["x"]) == [[0, 1], [2, 3], [], [], [20], [21]]
    assert cut.batch["y"].tolist() == [0, 0, 1, 1, 2, 2]
    assert cut.non_tensor_batch["o"].tolist() == ["a", "a", "b", "b", "c", "c"]
    assert lists(data.unfold_column_chunks(2).batch["x"]) == [[0, 1, 2, 3]] * 2 + [[], []] + [[20, 21]] * 2
    with pytest.raises(DataError, match="row 2 of column `x` has length 2, which does not divide by 4"):
        data.unfold_column_chunks(4, ["x"])
    turned = torch.nested.nested_tensor([torch.ones(3, 2), torch.ones(1, 2)], layout=torch.jagged).transpose(1, 2)
    with pytest.raises(DataError, match="`x` is jagged in dim 2"):
        DataProto(TensorDict({"x": turned}, batch_size=[2])).unfold_column_chunks(2, ["x"])


# ---- refused


def test_parts_that_do_not_fit_are_named():
    wide = torch.nested.nested_tensor([torch.ones(3, 2), torch.ones(1, 2)], layout=torch.jagged)
    parts = [DataProto(TensorDict({"x": x}, batch_size=[2])) for x in (jagged(1, 2), torch.ones(2, 1), wide)]
    with pytest.raises(DataError, match=r"`x` has layout torch.jagged in part 0 and torch.strided in part 1"):
        DataProto.concat(parts[:2])
    with pytest.raises(DataError, match=r"`x` has width \('\*',\) in part 0 and \('\*', 2\) in part 1"):
        DataProto.concat([parts[0], parts[2]])
    doubles = DataProto(TensorDict({"x": jagged(1, 2, dtype=torch.float64)}, batch_size=[2]))
    with pytest.raises(DataError, match=r"`x` has dtype torch.float32 in part 0 and torch.float64 in part 1"):
        DataProto.concat([parts[0], doubles])


def test_two_batch_dims_are_refused_by_name():
    for method in (lambda: fold_batch_dim(make(), 2), lambda: unfold_batch_dim(make())):
        with pytest.raises(DataError, match="column `ids` is jagged"):
            method()
    assert len(DataProto.from_dict({"x": jagged(2, 1)})) == 2
    with pytest.raises(DataError, match="column `x` is jagged, it has one batch dim and not 2"):
        DataProto.from_dict({"x": jagged(2, 1)}, num_batch_dims=2)


# ---- described


def test_info_and_size(capsys):
    data = DataProto(TensorDict({"x": jagged(3, 1)}, batch_size=[2]))
    assert "  x: (2, *) (torch.float32) on cpu" in data.get_data_info()
    data.print_size()
    assert f"{16 / 1024**3} GB" in capsys.readouterr().out


# ---- rows sent alone


def test_an_item_sends_its_row_and_not_the_batch():
    data = DataProto.from_dict({"x": torch.rand(64, 10_000)}, {"o": [{"t": row} for row in torch.rand(64, 10_000)]})
    data.batch["j"] = jagged(*[5000] * 64)
    item = data[3]
    sent = pickle.dumps(item)
    assert len(sent) < 40_000 + 40_000 + 20_000 + 3000
    again = pickle.loads(sent)
    assert isinstance(again, DataProtoItem)
    assert torch.equal(again.batch["x"], data.batch["x"][3])
    assert torch.equal(again.batch["j"], item.batch["j"])
    assert torch.equal(again.non_tensor_batch["o"]["t"], item.non_tensor_batch["o"]["t"])


def test_a_slice_that_ends_before_it_begins_has_no_rows():
    column = torch.nested.nested_tensor([torch.arange(2), torch.arange(3)], layout=torch.jagged)
    for cut in (slice(1, 0, 2), slice(5, 9, 3), slice(2, 2)):
        part = DataProto.from_dict({"x": column})[cut]
        assert len(part) == 0
