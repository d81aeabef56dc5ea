"""Curves made of small bars."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from dagrl.tui.series import Point
from dagrl.tui.sparkline import spark


def points_of(*values: float) -> list[Point]:
    return [Point(step, value) for step, value in enumerate(values)]


def test_a_short_history_has_a_column_for_each_step() -> None:
    assert spark(points_of(0, 1, 2, 3, 4, 5, 6, 7), 12, 1, last_step=7) == ["▁▂▃▄▅▆▇█    "]


def test_a_long_history_is_pressed_into_the_width() -> None:
    (drawn,) = spark(points_of(*range(1000)), 8, 1, last_step=999)
    assert drawn == "▁▂▃▄▅▆▇█"


def test_several_rows_make_finer_bars() -> None:
    assert spark(points_of(0, 1, 2, 3), 4, 2, last_step=3) == ["  ▃█", "▁▆██"]


def test_evaluations_stand_at_their_step_and_nothing_between() -> None:
    points = [Point(0, 0.0), Point(50, 0.5), Point(100, 1.0)]
    assert spark(points, 11, 1, last_step=100, holds=False) == ["▁    ▅    █"]
    assert spark(points, 11, 1, last_step=100) == ["▁▁▁▁▁▅▅▅▅▅█"]


@pytest.mark.parametrize("points", [[], points_of(3, 3, 3), [Point(5, float("inf"))], [Point(-9, 1.0)]])
def test_histories_that_say_little_are_drawn_too(points: list[Point]) -> None:
    assert [len(row) for row in spark(points, 6, 2, last_step=5)] == [6, 6]


@given(
    st.lists(st.builds(Point, st.integers(-5, 10**9), st.floats()), max_size=50),
    st.integers(-1, 60), st.integers(1, 4), st.integers(-5, 10**9),
)  # fmt: skip
def test_the_size_is_exact(points: list[Point], width: int, rows: int, last_step: int) -> None:
    drawn = spark(points, width, rows, last_step=last_step)
    assert [len(row) for row in drawn] == [max(0, width)] * rows
