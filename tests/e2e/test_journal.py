"""The events of a run that was killed tell of every step's update once: nothing is done twice."""

from collections import Counter
from pathlib import Path

import pytest
from killing import after, assert_equal_runs, command, finish, forty_rows, in_op, kill_at
from support import event_lines, metrics_lines

RAY = ("--executor", "ray", "--set", "workers=2")


def updates(out: Path) -> Counter[tuple[str, int]]:
    """How often each step's update began, and how often it was done."""
    kinds = ("OpStarted", "OpFinished")
    lines = [line for line in event_lines(out) if line["event"] in kinds and line["op"] == "update_policy"]
    return Counter((line["event"], line["step"]) for line in lines)


@pytest.mark.long
@pytest.mark.parametrize("executor", [(), RAY], ids=["local", "ray"])
def test_no_step_is_updated_twice(executor: tuple[str, ...], tmp_path: Path) -> None:
    """Killed in the update of a step that no checkpoint has, and when one is done that no checkpoint has."""
    data = forty_rows(tmp_path)
    finish(command(data, tmp_path / "whole", 5, *executor))
    assert kill_at(data, tmp_path / "killed", 5, [in_op("update_policy", 3), after(3)], *executor) == 2
    assert_equal_runs(tmp_path / "whole", tmp_path / "killed")
    wanted = {(event, step): 1 for event in ("OpStarted", "OpFinished") for step in range(1, 6)}
    assert updates(tmp_path / "killed") == updates(tmp_path / "whole") == wanted
    assert all(line["actor/optimizer_steps"] == 1 for line in metrics_lines(tmp_path / "killed")
               if "actor/optimizer_steps" in line)  # fmt: skip
    orders = [[line["step"] for line in event_lines(out) if line["event"] == "StepFinished"]
              for out in (tmp_path / "whole", tmp_path / "killed")]  # fmt: skip
    assert orders[0] == orders[1]
