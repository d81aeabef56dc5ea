"""NaN equals NaN, nested values are compared deeply, and what differs is never equal."""

from dataclasses import dataclass
from math import inf, nan

import numpy as np
import pytest
import torch

from dagrl.data.equality import equal, is_nan
from dagrl.data.metrics import Mean

NAN_TENSOR = torch.tensor([nan, 1.0])


@dataclass
class Score:
    value: float


def make_values():
    """Values that all differ from one another, built afresh on each call."""
    return [
        None,
        "a",
        1.5,
        float("nan"),
        [1, float("nan")],
        (1, float("nan")),
        [1, 2, 3],
        {"a": [float("nan")]},
        {"a": [1.0]},
        {"b": [1.0]},
        torch.tensor([float("nan"), 1.0]),
        torch.tensor([float("nan"), 2.0]),
        torch.tensor([1.0, float("nan")]),
        torch.tensor([1, 2]),
        torch.tensor([[1, 2]]),
        torch.tensor([True, False]),
        torch.ones(2, dtype=torch.bfloat16),
        torch.ones(2, dtype=torch.float16),
        torch.tensor([1.0, float("nan")]).to(torch.float8_e5m2),
        torch.tensor(3.0),
        torch.empty(0),
        np.array([1.0, float("nan")]),
        np.array([1, 2]),
        np.array(["a", "b"]),
        np.array([None, {"a": float("nan")}], dtype=object),
        np.array([None, {"a": 1.0}], dtype=object),
        Score(float("nan")),
        Score(1.0),
        Mean(float("nan"), 1),
        np.datetime64("NaT"),
        {1, 2},
    ]


def test_each_value_equals_its_twin_and_no_other():
    left, right = make_values(), make_values()
    for i, mine in enumerate(left):
        for j, theirs in enumerate(right):
            if is_nan(mine) and is_nan(theirs):
                continue
            assert equal(mine, theirs) == (i == j), (mine, theirs)


def test_nan_is_nan_in_every_float_type():
    assert equal(nan, np.float32("nan"))
    assert not equal(nan, 1.0)
    assert not equal(1.0, nan)
    assert equal(inf, inf)
    assert not equal(inf, -inf)


def test_string_arrays_of_different_width():
    assert equal(np.array(["a"]), np.array(["a"], dtype="<U9"))


def test_empty_dict_and_list_differ():
    assert not equal([], {})
    assert not equal([], ())
    assert equal([], [])


def test_tolerance_is_for_floats_only():
    first, second = 73.94637298583984, 73.94638061523438
    assert not equal(first, second)
    assert equal(first, second, rel_tol=1e-6)
    assert equal({"t": [first]}, {"t": [second]}, rel_tol=1e-6)
    assert equal([(Score(first),)], [(Score(second),)], rel_tol=1e-6)
    assert not equal(10_000_000, 10_000_001, rel_tol=1e-6)
    assert not equal(1.0, 0.5, rel_tol=1e-6)
    assert not equal(torch.tensor([first]), torch.tensor([first * 1.1]), rel_tol=1e-6)


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16, torch.float8_e4m3fn, torch.complex64])
def test_small_dtypes_compare(dtype):
    assert equal(NAN_TENSOR.to(dtype), NAN_TENSOR.to(dtype))
    assert not equal(NAN_TENSOR.to(dtype), torch.tensor([nan, 3.0]).to(dtype))
