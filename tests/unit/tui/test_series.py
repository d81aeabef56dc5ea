"""A bounded history tells the same as the whole one."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from dagrl.tui.series import MOST_POINTS, Series

VALUES = st.lists(st.floats(-1e6, 1e6), max_size=2000)


def series_of(values: list[float]) -> Series:
    series = Series()
    for step, value in enumerate(values, 1):
        series.add(step, value)
    return series


@given(VALUES)
def test_points_are_means_of_equally_many_neighbours(values: list[float]) -> None:
    series = series_of(values)
    chunks = [values[start : start + series.stride] for start in range(0, len(values), series.stride)]
    assert [point.value for point in series.points()] == pytest.approx([sum(each) / len(each) for each in chunks])
    ends = [min(len(values), (index + 1) * series.stride) for index in range(len(chunks))]
    assert [point.step for point in series.points()] == ends
    assert len(series.points()) <= MOST_POINTS
    assert series.stride == 1 or len(chunks) >= MOST_POINTS // 2


@given(VALUES)
def test_first_latest_least_and_greatest_are_exact(values: list[float]) -> None:
    series = series_of(values)
    assert series.count == len(values)
    if values:
        assert (series.first, series.latest) == ((1, values[0]), (len(values), values[-1]))
        assert (series.least, series.greatest) == (min(values), max(values))
    else:
        assert series.first is series.latest is None


def test_numbers_near_the_largest_merge_to_numbers() -> None:
    points = series_of([1.7e308] * 1000).points()
    assert all(point.value == pytest.approx(1.7e308) for point in points)


@given(st.lists(st.floats(-1, 1), min_size=1, max_size=200), st.data())
def test_what_a_resumed_run_does_again_is_forgotten(values: list[float], data: st.DataObject) -> None:
    step = data.draw(st.integers(0, len(values) + 1))
    series = series_of(values)
    series.cut_after(step)
    assert series.points() == series_of(values[:step]).points()
    assert series.count == min(step, len(values))
    series.add(step + 1, 7.0)
    assert series.latest == (step + 1, 7.0)


def test_a_long_history_that_is_cut_goes_on() -> None:
    series = series_of([float(step) for step in range(1, 5001)])
    series.cut_after(3000)
    assert series.latest is not None
    assert 3000 - series.stride < series.latest.step <= 3000
    for step in range(3001, 9000):
        series.add(step, float(step))
    assert len(series.points()) <= MOST_POINTS
    assert [point.step for point in series.points()] == sorted({point.step for point in series.points()})
