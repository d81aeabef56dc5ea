"""What the bench of the rollout holds against a report."""

from typing import Any

import pytest

from tests.bench.rollout import faults

GOOD: dict[str, Any] = {
    "generate": {"node_of_bare_wall": 0.95},
    "sync": {"times_bare_wall": 1.2},
    "memory": {"whole": {"within": True}, "gathered": {"within": True}},
    "copy": {"float32": {"of_memcpy_wall": 0.5}, "packed": {"of_memcpy_wall": 0.1}},
    "gather": {"bfloat16": {"of_memcpy_wall": 0.5}, "two_ranks": {"of_memcpy_wall": 0.1}},
    "phases": {"phases_share": 0.9},
}


def test_a_report_within_its_bars_is_fine() -> None:
    assert faults(GOOD) == []
    assert faults({}) == []


@pytest.mark.parametrize(
    ("part", "found", "said"),
    [
        ("generate", {"node_of_bare_wall": 0.94}, "generate: node_of_bare_wall is 0.94, below 0.95"),
        ("sync", {"times_bare_wall": 1.21}, "sync: times_bare_wall is 1.21, above 1.2"),
        ("copy", {"bfloat16": {"of_memcpy_wall": 0.49}}, "copy: bfloat16 runs at 0.49 of a memcpy, below 0.5"),
        ("gather", {"float32": {"of_memcpy_wall": 0.49}}, "gather: float32 runs at 0.49 of a memcpy, below 0.5"),
        (
            "memory",
            {"whole": {"within": True}, "gathered": {"within": False}},
            "memory: the peak of a sync is more than allowed (gathered)",
        ),
    ],
)
def test_a_bar_that_is_missed_is_named(part: str, found: dict[str, Any], said: str) -> None:
    assert faults({**GOOD, part: found}) == [said]
