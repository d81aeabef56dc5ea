"""Object columns keep one value for each row, whatever the values are."""

import copy
from collections import OrderedDict
from dataclasses import dataclass

import numpy as np
import pytest
import torch
from batches import OBJECTS
from hypothesis import given

from dagrl.data.objects import deep_copy, object_array, object_column, object_columns, own_copies
from dagrl.errors import DataTypeError


@pytest.mark.parametrize(
    "values",
    [
        [[1, 2], [3, 4]],
        [[1], [2, 3]],
        [np.ones(2), np.zeros(2)],
        [np.ones(2), np.ones(3)],
        [{"a": 1}, None],
        ["a", ""],
        [(1, 2), (3, 4)],
        [torch.ones(2), torch.ones(2)],
        [[[1]], [[2]]],
        [1, 2.5],
    ],
)
def test_shape_is_one_value_for_each_row(values):
    array = object_array(values)
    assert array.shape == (2,)
    assert array.dtype == object
    assert all(mine is theirs for mine, theirs in zip(array, values, strict=True))


def test_empty():
    assert object_array([]).shape == (0,)
    assert object_array([]).dtype == object
    assert object_array(np.empty((0, 3))).shape == (0,)


def test_flat_array_becomes_python_values():
    assert [type(value) for value in object_array(np.array([1, 2], dtype=np.int32))] == [int, int]
    assert object_array(np.array(["a", "b"])).tolist() == ["a", "b"]


def test_rows_of_an_array_with_two_dims():
    array = object_array(np.arange(6).reshape(3, 2))
    assert array.shape == (3,)
    assert array[1].tolist() == [2, 3]
    assert object_array(np.array([[1, 2], [3, 4]], dtype=object)).shape == (2,)


def test_an_object_array_is_not_copied():
    array = object_array([1, None])
    assert object_array(array) is array


@pytest.mark.parametrize("value", ["text", b"bytes", {"a": 1}, np.array(3)])
def test_one_value_is_refused(value):
    with pytest.raises(DataTypeError, match="one value for each row"):
        object_array(value)


def test_column_errors_name_the_column():
    with pytest.raises(TypeError, match="`scores`"):
        object_column("scores", 3)
    with pytest.raises(TypeError, match="`scores`"):
        object_column("scores", np.array(3))


def test_reward_dicts_with_different_keys_become_columns():
    columns = object_columns([{"acc": 1, "pred": "7"}, {"acc": 0}])
    assert {name: column.tolist() for name, column in columns.items()} == {"acc": [1, 0], "pred": ["7", None]}
    late = object_columns([{"acc": 1}, {"why": [1, 2]}])
    assert list(late) == ["acc", "why"]
    assert late["why"].tolist() == [None, [1, 2]]
    assert object_columns([]) == {}


def test_own_copies_from_a_row_on():
    first, second = {"a": [1]}, {"a": [2]}
    copied = own_copies(object_array([first, second]), 1)
    assert copied[0] is first
    assert copied[1] == second
    assert copied[1] is not second
    assert copied[1]["a"] is not second["a"]


def test_copies_are_new_columns_also_of_text():
    values = object_array(["a", "b"])
    copied = own_copies(values)
    copied[0] = "c"
    assert values.tolist() == ["a", "b"]
    assert own_copies(values, 1)[1] is values[1]


def mutable_parts(value):
    """The ids of all lists and dicts in a value."""
    inner = value.values() if isinstance(value, dict) else value if isinstance(value, list | tuple) else ()
    own = {id(value)} if isinstance(value, dict | list) else set()
    return own.union(*map(mutable_parts, inner))


@given(OBJECTS)
def test_deep_copies_are_equal_and_share_nothing_that_changes(value):
    copied = deep_copy(value)
    assert repr(copied) == repr(value) == repr(copy.deepcopy(value))
    assert type(copied) is type(value)
    assert not mutable_parts(copied) & mutable_parts(value)


@dataclass
class Score:
    values: list


def test_copies_of_other_types_and_of_what_is_met_twice():
    shared = [1]
    endless = [shared]
    endless.append(endless)
    score, ordered, array = Score([1]), OrderedDict(a=[1]), np.arange(3)
    for value in (score, ordered, {"a": score}, [array], {1, 2}):
        copied = deep_copy(value)
        assert type(copied) is type(value)
        assert copied is not value
        assert repr(copied) == repr(value)
    assert deep_copy(score).values is not score.values
    assert not np.shares_memory(deep_copy([array])[0], array)
    twice = deep_copy({"x": shared, "y": shared})
    assert twice["x"] is twice["y"]
    assert twice["x"] is not shared
    again = deep_copy(endless)
    assert again[1] is again
