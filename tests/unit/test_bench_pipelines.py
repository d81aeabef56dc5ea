"""What the bench of the shipped pipelines runs, and what it holds against one."""

import pytest

from tests.bench.pipelines import Measured, chosen


def test_what_needs_extras_runs_only_if_it_is_named() -> None:
    names = {file.stem for file in chosen([])}
    assert {"grpo", "sft"} <= names
    assert "smollm2" not in names
    assert [file.stem for file in chosen(["smollm2"])] == ["smollm2"]


@pytest.mark.parametrize(
    ("name", "held_out", "seconds", "said"),
    [
        ("grpo", 0.85, 149.0, []),
        ("grpo", 0.84, 149.0, ["grpo ends with 0.840, below 0.85"]),
        ("grpo", float("nan"), 1.0, ["grpo ends with nan, below 0.85"]),
        ("remax", 0.75, 150.0, ["remax takes 150 s, not under 150"]),
        ("sft", 0.1, 1.0, []),
        ("smollm2", 0.1, 900.0, []),
    ],
)
def test_bars(name: str, held_out: float, seconds: float, said: list[str]) -> None:
    assert Measured(name, "", held_out, seconds).faults() == said
