"""Metrics merge exactly in any grouping, NaN is never hidden, kinds never mix."""

from math import isnan, nan

import pytest
from hypothesis import given
from hypothesis import strategies as st

from dagrl.data.metrics import Max, Mean, Metrics, Min, Sum, merge_all

numbers = st.integers(-1000, 1000)


@given(st.lists(numbers, min_size=1), st.data())
def test_parts_merge_to_the_whole(values, data):
    cut = data.draw(st.integers(0, len(values)))
    parts = [part for part in (values[:cut], values[cut:]) if part]
    merged = merge_all(
        {"mean": Mean(sum(p), len(p)), "max": Max(max(p)), "min": Min(min(p)), "sum": Sum(sum(p))} for p in parts
    )
    assert merged["mean"] == Mean(sum(values), len(values))
    assert merged.numbers() == {
        "mean": sum(values) / len(values),
        "max": max(values),
        "min": min(values),
        "sum": sum(values),
    }


def test_a_mean_weighs_its_parts():
    assert Mean(10.0, 1).merge(Mean(0.0, 4)).value == 2.0


def test_a_mean_of_nothing_is_nan_and_adds_nothing():
    assert isnan(Mean(0.0, 0).value)
    assert Mean(0.0, 0).merge(Mean(3.0, 2)) == Mean(3.0, 2)


@pytest.mark.parametrize("kind", [Max, Min, Sum, lambda value: Mean(value, 1)])
@pytest.mark.parametrize(("left", "right"), [(nan, 1.0), (1.0, nan), (nan, nan)])
def test_nan_is_never_hidden(kind, left, right):
    assert isnan(kind(left).merge(kind(right)).value)
    assert isnan(kind(left).merge(kind(right)).merge(kind(0.0)).value)


def test_max_and_min_keep_the_extreme():
    assert Max(1.0).merge(Max(3.0)) == Max(3.0).merge(Max(1.0)) == Max(3.0)
    assert Min(1.0).merge(Min(3.0)) == Min(3.0).merge(Min(1.0)) == Min(1.0)


def test_two_kinds_under_one_name_clash():
    with pytest.raises(TypeError, match=r"`loss` is a Mean in one part and a Max in another"):
        Metrics({"loss": Mean(1.0, 1)}).merge({"loss": Max(1.0)})


def test_merging_changes_neither_side():
    left, right = Metrics({"a": Sum(1.0)}), {"a": Sum(2.0), "b": Sum(5.0)}
    assert dict(left.merge(right)) == {"a": Sum(3.0), "b": Sum(5.0)}
    assert dict(left) == {"a": Sum(1.0)}
    assert right["a"] == Sum(2.0)


def test_the_source_mapping_is_copied():
    source = {"a": Sum(1.0)}
    metrics = Metrics(source)
    source["a"] = Sum(9.0)
    assert metrics["a"] == Sum(1.0)
    assert len(metrics) == 1
    assert "a" in repr(metrics)


def test_nothing_merges_to_nothing():
    assert len(merge_all([])) == 0
    assert Metrics().numbers() == {}
