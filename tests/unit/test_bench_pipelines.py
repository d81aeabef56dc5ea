"""What the bench of the shipped pipelines runs, and what it holds against one."""

import re

import pytest

from tests.bench.pipelines import HEADER, ROOT, Measured, chosen, table_line


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
        ("sft", 0.51, 1.0, []),
        ("sft", 0.44, 1.0, ["sft ends with 0.440, below 0.45"]),
        ("smollm2", 0.1, 900.0, []),
    ],
)
def test_bars(name: str, held_out: float, seconds: float, said: list[str]) -> None:
    assert Measured(name, "", held_out, seconds).faults() == said


@pytest.mark.parametrize(
    ("name", "sampled", "held_out", "line"),
    [
        ("grpo", [0.25, 0.9], [0.538, 0.7, 1.0], "| grpo | .575 → .575 | .538 → 1.000 | 124 |"),
        ("sft", [], [0.0, 0.5112], "| sft | | .000 → .511 | 124 |"),
    ],
)
def test_a_line_of_the_table(name: str, sampled: list[float], held_out: list[float], line: str) -> None:
    assert table_line(name, sampled, held_out, 123.6) == line


def test_the_readme_has_the_table_as_it_is_printed_with_every_pipeline_above_its_bar() -> None:
    _, _, rest = (ROOT / "README.md").read_text(encoding="utf-8").partition(HEADER + "\n")
    lines = rest.partition("\n\n")[0].splitlines()
    assert [line.split()[1] for line in lines] == [file.stem for file in chosen([])]
    for line in lines:
        found = re.fullmatch(r"\| (\w+) (?:\| \.\d{3} → \.\d{3} |\| )\| \.\d{3} → (\.\d{3}) \| (\d+) \|", line)
        assert found, line
        assert Measured(found[1], line, float(found[2]), float(found[3])).faults() == []
