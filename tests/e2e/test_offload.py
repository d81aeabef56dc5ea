"""What is trained leaves memory while others work, by plan, and the numbers are those of a run in which it stays."""

from pathlib import Path

import pytest
from support import edited_pipeline, event_lines, metrics_lines, run_grpo, untimed

_EDITS = (
    ("rollout=cfg.rollout)", "rollout=cfg.rollout, offload=True)"),
    ('WorkerGroup("ref", policy(cfg.model,', 'WorkerGroup("ref", policy(cfg.model, offload=True,'),
)  # fmt: skip


def numbers(folder: Path) -> list[dict]:
    return [untimed(line) for line in metrics_lines(folder)]


@pytest.mark.parametrize("precision", ["fp32", "bf16"])
def test_a_run_that_offloads_learns_the_same(tmp_path: Path, precision: str) -> None:
    file = edited_pipeline(tmp_path, *_EDITS)
    run_grpo(tmp_path / "stays", precision=precision, evaluate=True)
    run_grpo(tmp_path / "moves", precision=precision, evaluate=True, file=file)
    assert numbers(tmp_path / "moves") == numbers(tmp_path / "stays")
    switched = [event["action"] for event in event_lines(tmp_path / "moves") if event["event"] == "PhaseSwitched"]
    assert {"offload_model", "offload_optimizer", "onload_model", "onload_optimizer"} <= set(switched)
    assert not [event for event in event_lines(tmp_path / "stays") if event["event"] == "PhaseSwitched"]


def test_a_reference_that_is_pruned_is_not_moved(tmp_path: Path) -> None:
    run_grpo(tmp_path / "run", kl=0, steps=1, file=edited_pipeline(tmp_path, *_EDITS))
    moved = {event["group"] for event in event_lines(tmp_path / "run") if event["event"] == "PhaseSwitched"}
    assert moved == {"actor"}
