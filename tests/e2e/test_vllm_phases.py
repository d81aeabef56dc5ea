"""A vLLM engine that shares its process with training: it sleeps while others work, and generates from new weights."""

from pathlib import Path

import pytest
from support import edited_pipeline, event_lines, load_grpo, metrics_lines

from dagrl.storage.segments import read_lines
from dagrl.trainer.loop import run

pytest.importorskip("vllm")

STEP = ["wake_weights", "wake_kv", "generate", "sleep", "ref_logprob", "update_policy", "wake_weights", "sync"]


def told(event: dict) -> str | None:
    match event["event"]:
        case "PhaseSwitched":
            return event["action"]
        case "OpFinished" if event["op"] in STEP:
            return event["op"]
        case "WeightsSynced":
            return "sync"
    return None


OFFLOADED = [
    "offload_optimizer", "offload_model", "wake_weights", "wake_kv", "generate", "sleep", "ref_logprob",
    "onload_model", "onload_optimizer", "update_policy", "offload_optimizer", "wake_weights", "sync",
]  # fmt: skip


@pytest.mark.long
def test_the_phases_of_each_step(tmp_path: Path) -> None:
    pipelines = load_grpo(precision="fp32", lr=1e-2, rollout="vllm").pipelines
    run(pipelines, out=str(tmp_path / "run"), steps=2)
    events = [event for event in event_lines(tmp_path / "run") if "step" in event]
    for step in (1, 2):
        mine = [event for event in events if event["step"] == step and event.get("pipeline") == "grpo"]
        assert [word for word in map(told, mine) if word is not None] == STEP
    lines = [line for line in metrics_lines(tmp_path / "run") if line["pipeline"] == "grpo"]
    assert all(line["rollout/logprob_gap"] < 1e-3 for line in lines)
    timed = read_lines(str(tmp_path / "run"), "metrics")[-1]
    assert all(timed[f"time/phase/{action}"] >= 0 for action in ("wake_weights", "wake_kv"))
    single = sum(seconds for name, seconds in timed.items() if name.startswith("time/phase/"))
    assert timed["time/phases"] == pytest.approx(single)


@pytest.mark.long
def test_an_engine_and_a_trainer_that_give_way_to_each_other(tmp_path: Path) -> None:
    file = edited_pipeline(tmp_path, ("rollout=cfg.rollout)", "rollout=cfg.rollout, offload=True)"))
    run(load_grpo(file, precision="fp32", lr=1e-2, rollout="vllm").pipelines, out=str(tmp_path / "run"), steps=2)
    events = [event for event in event_lines(tmp_path / "run") if event.get("pipeline") == "grpo"]
    for step in (1, 2):
        mine = [event for event in events if event.get("step") == step]
        assert [word for word in map(told, mine) if word is not None] == OFFLOADED
    lines = [line for line in metrics_lines(tmp_path / "run") if line["pipeline"] == "grpo"]
    assert all(line["rollout/logprob_gap"] < 1e-3 for line in lines)
