"""Numbers with their units."""

import math

import pytest
from hypothesis import given
from hypothesis import strategies as st

from dagrl.tui.formats import clock, count, duration, num_bytes, number, of_bytes, of_duration, percent

NUMBERS = st.none() | st.floats() | st.integers(-(10**30), 10**30)


@pytest.mark.parametrize(
    ("seconds", "shown"),
    [
        (0.0003, "0.3 ms"), (0.051, "51 ms"), (0.9996, "1.0 s"), (2.44, "2.4 s"), (205, "3:25 min"),
        (59.97, "1:00 min"), (3723, "1:02:03 h"), (-1, "0.0 ms"), (None, "-"), (math.nan, "-"), (math.inf, "-"),
    ],
)  # fmt: skip
def test_durations(seconds: float | None, shown: str) -> None:
    assert duration(seconds) == shown


def test_parts_say_their_unit_once() -> None:
    assert of_duration(0.061, 0.117) == "61 of ~117 ms"
    assert of_duration(0.061, 0.117, "/") == "61/~117 ms"
    assert of_duration(0.4, 1.1) == "0.4 of ~1.1 s"
    assert of_duration(61, 205) == "1:01 of ~3:25 min"
    assert of_duration(61, 3723) == "0:01:01 of ~1:02:03 h"
    assert of_bytes(440 << 20, 12 << 30) == "0.43 of 12 GiB"
    assert of_bytes(440 << 20, 0) == "440 MiB"


def test_what_takes_longer_than_usual_says_how_much() -> None:
    assert of_duration(0.187, 0.129) == "187 ms 1.4x"
    assert of_duration(4, 0.082) == "4.0 s 49x"
    assert of_duration(4, 0) == "4.0 s"
    assert of_duration(4, math.nan) == "4.0 s"


def test_counts_bytes_metrics_shares_and_clocks() -> None:
    assert [count(value) for value in (0, 512, 999.6, 8512, 3_200_000)] == ["0", "512", "1.0k", "8.5k", "3.2M"]
    assert [num_bytes(value) for value in (512, 3_565_158, 13 << 30)] == ["512 B", "3.4 MiB", "13 GiB"]
    assert [number(value) for value in (0, 2e-9, 0.0065, 0.8824, -12.34, 4096)] == [
        "0", "2e-09", "0.0065", "0.882", "-12.3", "4096",
    ]  # fmt: skip
    assert [percent(value) for value in (0, 0.004, 0.43, 1)] == ["0 %", "0.4 %", "43 %", "100 %"]
    assert [clock(value) for value in (44, 3600 * 51 + 44)] == ["0:00:44", "2d 03:00:44"]


@given(NUMBERS, NUMBERS)
def test_every_number_has_a_form(value: float | None, other: float | None) -> None:
    for form in (duration, clock, count, num_bytes, number, percent):
        assert len(form(value)) < 48
    if isinstance(value, int) and isinstance(other, int):
        assert of_bytes(value, other)
    if isinstance(value, float) and isinstance(other, float):
        assert of_duration(value, other)
