"""The filter of dynamic sampling: whole groups, the share kept, and what its call is refused for."""

import math

import pytest
import torch

from dagrl import Mean, Pipeline, refill
from dagrl.compiler import compile_pipelines
from dagrl.errors import CompileError
from dagrl.nodes import format_reward, generate, mixed_groups, prompts, report


def test_groups_stay_or_leave_whole_and_the_share_is_of_groups() -> None:
    rewards = torch.tensor([1.0, 0.0, 1.0, 1.0, math.nan, 2.0, 3.0])
    kept, metrics = mixed_groups(rewards, torch.tensor([4, 4, 5, 5, 6, 6, 6]))
    assert kept.tolist() == [True, True, False, False, True, True, True]
    assert metrics["mixed_groups/kept_share"] == Mean(2.0, 3.0)


def test_no_rows() -> None:
    kept, metrics = mixed_groups(torch.tensor([]), torch.tensor([], dtype=torch.int64))
    assert kept.tolist() == []
    assert metrics["mixed_groups/kept_share"] == Mean(0.0, 0.0)


def test_groups_of_one_are_refused() -> None:
    from dagrl import ResourcePool, WorkerGroup, policy

    actor = WorkerGroup("actor", policy("zoo:tiny"), pool=ResourcePool("main"))
    with Pipeline("p") as pipeline:
        with refill(groups=2):
            batch = prompts(data="zoo:larger", batch_size=4, n=1)
            reward = format_reward(generate(actor, batch, max_new_tokens=4), pattern=".*")
            mixed_groups(reward)
        report(reward)
    with pytest.raises(CompileError, match="`mixed_groups`: `prompts` has n=1: a group of one never differs"):
        compile_pipelines([pipeline])
