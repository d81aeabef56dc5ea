"""What a gym task itself gives an answer: called in reward processes, since the tasks' code is others'."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from dagrl.zoo.gym_tasks import SPLITS, open_gym_task


def compute_score(solution_str: str, extra_info: Mapping[str, Any]) -> float:
    """The score from 0 to 1 of an answer to an entry of a task."""
    return open_gym_task(extra_info["gym"], SPLITS[0]).score(solution_str, extra_info["entry"])
