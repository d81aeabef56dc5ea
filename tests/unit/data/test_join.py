"""Rows align by id and widths grow at the right end, as plain Python would do it."""

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from dagrl.data.join import Widths, intersect_rows, repad, select_rows, take
from dagrl.data.objects import object_array
from dagrl.errors import DataError


def reference_repad(rows, dim, have, want, pad):
    """Each row of a [B dim] column, padded one value at a time."""
    left = want.P - have.P if dim in "PS" else 0
    right = want.T - have.T if dim in "TS" else 0
    return [[pad] * left + list(row) + [pad] * right for row in rows]


def ids(*values):
    return torch.tensor(values, dtype=torch.int64)


# ---- repad


@given(
    dim=st.sampled_from(["P", "T", "S"]),
    rows=st.integers(0, 4),
    have=st.tuples(st.integers(0, 4), st.integers(0, 4)),
    grow=st.tuples(st.integers(0, 3), st.integers(0, 3)),
)
def test_repad_equals_the_scalar_reference(dim, rows, have, grow):
    have, want = Widths(*have), Widths(have[0] + grow[0], have[1] + grow[1])
    width = {"P": have.P, "T": have.T, "S": have.S}[dim]
    tensor = torch.arange(1, rows * width + 1).reshape(rows, width)
    padded = repad(tensor, ("B", dim), have, want, -7)
    assert padded.shape == (rows, {"P": want.P, "T": want.T, "S": want.S}[dim])
    assert padded.tolist() == reference_repad(tensor.tolist(), dim, have, want, -7)


@pytest.mark.parametrize(
    ("dtype", "pad"),
    [
        (torch.bool, True),
        (torch.bool, False),
        (torch.uint8, 3),
        (torch.int8, -1),
        (torch.int16, 2),
        (torch.int32, 2),
        (torch.int64, 2**53 + 1),
        (torch.float16, 0.5),
        (torch.bfloat16, -1.5),
        (torch.float32, 0.0),
        (torch.float64, 1e-300),
    ],
)
def test_repad_keeps_the_dtype(dtype, pad):
    tensor = torch.zeros(2, 3).to(dtype)
    padded = repad(tensor, ("B", "S"), Widths(1, 2), Widths(3, 3), pad)
    assert padded.dtype == dtype
    fill = torch.tensor(pad, dtype=dtype)
    assert torch.equal(padded[:, 2:5], tensor)
    assert bool((padded[:, [0, 1, 5]] == fill).all())


def test_repad_grows_every_padded_dim_and_no_other():
    tensor = torch.arange(12).reshape(2, 2, 3)
    assert repad(tensor, ("B", "T", "K"), Widths(1, 2), Widths(4, 3), 0).shape == (2, 3, 3)
    square = repad(torch.ones(2, 3, 3), ("B", "S", "S"), Widths(1, 2), Widths(2, 4), 0.0)
    assert square.shape == (2, 6, 6)
    assert square[:, 1:4, 1:4].eq(1).all()
    assert square.sum() == 18


@pytest.mark.parametrize("dims", [("B",), ("N", "V"), ("B", "K")])
def test_other_dims_stay(dims):
    tensor = torch.ones([3] * len(dims))
    assert repad(tensor, dims, Widths(1, 1), Widths(9, 9), 0) is tensor


def test_repad_without_growth_is_free():
    tensor = torch.ones(2, 3)
    assert repad(tensor, ("B", "S"), Widths(1, 2), Widths(1, 2), 0) is tensor
    assert repad(tensor, ("B", "T"), Widths(1, 3), Widths(5, 3), 0) is tensor


def test_repad_leaves_its_argument():
    tensor = torch.ones(2, 3)
    repad(tensor, ("B", "T"), Widths(0, 3), Widths(0, 5), 9).fill_(4)
    assert tensor.eq(1).all()
    assert tensor.shape == (2, 3)


@pytest.mark.parametrize("want", [Widths(1, 5), Widths(5, 1), Widths(0, 0)])
@pytest.mark.parametrize("dims", [("B", "S"), ("B",)])
def test_repad_never_shrinks(want, dims):
    with pytest.raises(DataError, match="padding never shrinks: from P=2 T=2 to P="):
        repad(torch.ones([4] * len(dims)), dims, Widths(2, 2), want, 0)


def test_repad_refuses_a_tensor_that_is_not_what_its_edge_says():
    with pytest.raises(DataError, match="dim T of"):
        repad(torch.ones(2, 4), ("B", "T"), Widths(2, 3), Widths(2, 5), 0)
    with pytest.raises(DataError, match="dim S of"):
        repad(torch.ones(2, 4), ("B", "S"), Widths(2, 3), Widths(2, 3), 0)
    with pytest.raises(DataError, match="does not have the dims"):
        repad(torch.ones(2), ("B", "T"), Widths(2, 3), Widths(2, 5), 0)


def test_widths_are_frozen():
    assert Widths(2, 3).S == 5
    with pytest.raises(AttributeError):
        Widths(2, 3).P = 4  # pyright: ignore


# ---- rows


unique_ids = st.lists(st.integers(-(2**40), 2**40), unique=True, max_size=20)


@given(unique_ids, st.data())
def test_select_rows_equals_a_dict_lookup(have, data):
    want = data.draw(st.permutations(have))[: data.draw(st.integers(0, len(have)))]
    index = select_rows(ids(*have), ids(*want))
    where = {value: place for place, value in enumerate(have)}
    if want == have:
        assert index is None
    else:
        assert index.dtype == torch.int64
        assert index.tolist() == [where[value] for value in want]


@given(unique_ids, unique_ids)
def test_select_rows_refuses_exactly_what_is_missing(have, want):
    missing = [value for value in want if value not in have]
    if not missing:
        return
    with pytest.raises(DataError) as failure:
        select_rows(ids(*have), ids(*want))
    message = str(failure.value)
    shown = ", ".join(map(str, missing[:5])) + (", ..." if len(missing) > 5 else "")
    assert message == f"{len(missing)} wanted rows are not among the rows at hand: {shown}"


def test_same_rows_need_no_index():
    assert select_rows(ids(3, 1, 2), ids(3, 1, 2)) is None
    assert select_rows(ids(), ids()) is None


def test_a_subset_of_sorted_rows():
    assert select_rows(ids(1, 2, 5, 9), ids(9, 2)).tolist() == [3, 1]
    assert select_rows(ids(1, 2), ids()).tolist() == []
    with pytest.raises(DataError, match="1 wanted rows are not among the rows at hand: 10"):
        select_rows(ids(1, 2, 5, 9), ids(1, 10))


def test_repeats_are_named():
    with pytest.raises(DataError, match=r"repeat among the rows at hand: 4, 7$"):
        select_rows(ids(7, 4, 7, 4, 4, 1), ids(1))
    with pytest.raises(DataError, match=r"repeat among the rows at hand: 2$"):
        select_rows(ids(1, 2, 2, 3), ids(1))
    with pytest.raises(DataError, match=r"repeat among the wanted rows: 8$"):
        select_rows(ids(8, 9), ids(8, 8))


def test_at_most_five_ids_are_listed():
    with pytest.raises(DataError, match=r": 0, 1, 2, 3, 4, \.\.\.$"):
        select_rows(ids(100), torch.arange(9))
    with pytest.raises(DataError, match=r": 0, 1, 2, 3, 4$"):
        select_rows(ids(100), torch.arange(5))


def test_strided_ids():
    strided = torch.arange(10)[::2]
    assert select_rows(torch.arange(10), strided).tolist() == [0, 2, 4, 6, 8]
    assert select_rows(strided, ids(8, 0)).tolist() == [4, 0]


@given(st.lists(unique_ids, min_size=1, max_size=4))
def test_intersection_keeps_the_order_of_the_first(parts):
    expected = [value for value in parts[0] if all(value in part for part in parts)]
    assert intersect_rows([ids(*part) for part in parts]).tolist() == expected


@given(unique_ids, st.data())
def test_intersection_of_overlapping_parts(pool, data):
    parts = [data.draw(st.lists(st.sampled_from(pool), unique=True)) if pool else [] for _ in range(3)]
    expected = [value for value in parts[0] if value in parts[1] and value in parts[2]]
    assert intersect_rows([ids(*part) for part in parts]).tolist() == expected


def test_intersection_of_equal_parts_is_the_first_itself():
    first = ids(2, 1)
    assert intersect_rows([first]) is first
    assert intersect_rows([first, ids(2, 1)]) is first


def test_intersection_refuses_no_parts_and_repeats():
    with pytest.raises(DataError, match="no edges"):
        intersect_rows([])
    with pytest.raises(DataError, match="repeat among the rows of part 1: 3"):
        intersect_rows([ids(1, 3), ids(3, 3)])
    with pytest.raises(DataError, match="repeat among the rows of part 0: 3"):
        intersect_rows([ids(3, 3), ids(3, 4)])


def test_intersection_leaves_its_arguments():
    first, second = ids(4, 2, 9), ids(9, 4, 7)
    assert intersect_rows([first, second]).tolist() == [4, 9]
    assert first.tolist() == [4, 2, 9]
    assert second.tolist() == [9, 4, 7]


# ---- take


@pytest.mark.parametrize(
    "dtype", [torch.bool, torch.bfloat16, torch.float16, torch.uint16, torch.int64, torch.float8_e4m3fn]
)
def test_take_rows_of_a_tensor(dtype):
    values = torch.tensor([[1.0, 0.0], [0.0, 1.0], [1.0, 1.0]]).to(dtype)
    taken = take(values, ids(2, 0))
    assert taken.dtype == dtype
    assert taken.float().tolist() == [[1.0, 1.0], [1.0, 0.0]]


def test_take_rows_of_objects():
    values = object_array([[1, 2], {"a": 1}, None])
    assert take(values, ids(2, 0)).tolist() == [None, [1, 2]]
    assert take(values, ids()).shape == (0,)
    assert take(values, ids()).dtype == object


def test_take_everything_is_free():
    tensor, objects = torch.ones(3), np.array([None, 1], dtype=object)
    assert take(tensor, None) is tensor
    assert take(objects, None) is objects


def test_take_no_rows_keeps_the_columns_shape():
    assert take(torch.ones(3, 4, dtype=torch.bfloat16), ids()).shape == (0, 4)


@given(st.permutations(range(9)))
def test_align_and_take(order):
    have = torch.arange(9) * 11
    want = have[list(order)]
    assert torch.equal(take(have, select_rows(have, want)), want)
