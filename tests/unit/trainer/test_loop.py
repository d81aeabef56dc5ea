"""The loop: when evaluations run, what the seed and the step decide, what is written when."""

import json
import math
import signal
from pathlib import Path

import pytest
from support import event_lines, load_grpo, metrics_lines, run_grpo

from dagrl.errors import ConfigError
from dagrl.executor.events import Event, Listener, RunFinished, RunPaused, StepFinished, event_from_dict
from dagrl.storage.segments import read_lines
from dagrl.trainer.loop import run
from dagrl.trainer.records import Record
from dagrl.trainer.saving import Saving
from dagrl.trainer.stopping import StopRequest


@pytest.mark.parametrize(("every", "steps", "expected"), [(2, 5, [0, 2, 4, 5]), (1, 2, [0, 1, 2]), (9, 2, [0, 2])])
def test_evaluations_run_first_every_k_steps_and_last(
    tmp_path: Path, every: int, steps: int, expected: list[int], monkeypatch: pytest.MonkeyPatch
) -> None:
    short = run_grpo(tmp_path / "run", steps=steps, evaluate=True, batch_size=2, n=2, eval_every=every)
    assert [record.step for record in short.records if record.pipeline == "eval"] == expected
    assert [record.step for record in short.records if record.pipeline == "grpo"] == list(range(1, steps + 1))


def test_the_learning_rate_warms_up_and_decays_over_the_runs_steps(tmp_path: Path) -> None:
    result = run_grpo(tmp_path / "run", steps=4, batch_size=2, n=2, lr=1e-3)
    rates = [record.metrics["actor/lr"] for record in result.records]
    expected = [1e-3 * (step + 1) / 20 * (0.1 + 0.9 * (1 - step / 4)) for step in range(4)]
    assert rates == pytest.approx(expected)


def test_the_seed_decides_which_prompts_a_step_reads(tmp_path: Path) -> None:
    seen: dict[int, list[str]] = {}
    for seed in (0, 1):
        run_grpo(tmp_path / str(seed), steps=1, seed=seed, batch_size=4, n=2, temperature=0.01)
        seen[seed] = [json.dumps(line) for line in metrics_lines(tmp_path / str(seed))]
    assert seen[0] != seen[1]


def test_every_finished_step_is_on_disk_at_once(tmp_path: Path) -> None:
    counts: list[int] = []

    def count(record: Record) -> None:
        counts.append(len(metrics_lines(tmp_path / "run")))

    pipelines = load_grpo(batch_size=2, n=2).pipelines[:1]
    run(pipelines, out=str(tmp_path / "run"), steps=3, on_record=count)
    assert counts == [1, 2, 3]


def test_whoever_listens_hears_what_the_event_log_says(tmp_path: Path) -> None:
    heard: list[Event] = []
    pipelines = load_grpo(batch_size=2, n=2).pipelines
    run(pipelines, out=str(tmp_path / "run"), steps=2, saving=Saving(every=1), on_event=heard.append)
    assert [event_from_dict(line) for line in event_lines(tmp_path / "run")] == heard
    assert {type(event).__name__ for event in heard} >= {"RunStarted", "CheckpointSaved", "StepFinished", "RunFinished"}


def test_the_hook_between_steps_is_called_before_each_and_after_the_last_and_its_events_are_told(
    tmp_path: Path,
) -> None:
    moments: list[int] = []
    heard: list[Event] = []

    def hook(emit: Listener) -> None:
        moments.append(sum(isinstance(event, StepFinished) for event in heard))
        emit(RunPaused(0.0, moments[-1]))

    pipelines = load_grpo(batch_size=2, n=2).pipelines[:1]
    run(pipelines, out=str(tmp_path / "run"), steps=3, on_event=heard.append, between_steps=hook)
    assert moments == [0, 1, 2, 3]
    assert [event.step for event in heard if isinstance(event, RunPaused)] == moments
    assert [line["step"] for line in event_lines(tmp_path / "run") if line["event"] == "RunPaused"] == moments


def test_a_stop_that_the_hook_asks_for_comes_before_the_next_step(tmp_path: Path) -> None:
    heard: list[Event] = []
    stop = StopRequest()

    def hook(emit: Listener) -> None:
        if sum(isinstance(event, StepFinished) for event in heard) == 2 and stop.signal is None:
            signal.raise_signal(signal.SIGINT)

    pipelines = load_grpo(batch_size=2, n=2).pipelines[:1]
    result = run(pipelines, out=str(tmp_path / "run"), steps=5, stop=stop, on_event=heard.append, between_steps=hook)
    assert (result.step, result.stopped_by) == (2, signal.SIGINT)
    assert isinstance(heard[-1], RunFinished)
    assert heard[-1].outcome == "stopped"


def test_events_tell_every_op_sync_and_free(tmp_path: Path) -> None:
    run_grpo(tmp_path / "run", steps=2, batch_size=2, n=2)
    events = event_lines(tmp_path / "run")
    kinds = [event["event"] for event in events]
    assert kinds[0] == "RunStarted"
    assert kinds[-1] == "RunFinished"
    assert kinds.count("WeightsSynced") == 2
    started = [event["op"] for event in events if event["event"] == "OpStarted"]
    assert started == ["prompts", "generate", "verify", "grpo_advantage", "ref_logprob", "update_policy"] * 2
    assert all(event["rows"] == 4 for event in events if event["event"] == "OpFinished")


def test_a_step_tells_the_seconds_of_its_weight_syncs(tmp_path: Path) -> None:
    run_grpo(tmp_path / "run", steps=2, evaluate=True, eval_every=1, batch_size=2, n=2)
    synced = [event for event in event_lines(tmp_path / "run") if event["event"] == "WeightsSynced"]
    lines = read_lines(str(tmp_path / "run"), "metrics")
    timed = {line["step"]: line["time/sync_actor"] for line in lines if line["pipeline"] == "grpo"}
    assert timed == {event["step"]: event["seconds"] for event in synced}
    assert len(timed) == 2
    assert not any("time/sync_actor" in line for line in lines if line["pipeline"] == "eval")
    assert not any("time/phases" in line for line in lines)


def test_a_model_that_does_not_load_leaves_no_run_folder(tmp_path: Path) -> None:
    (tmp_path / "model").mkdir()
    (tmp_path / "model/config.json").write_text("{}")
    (tmp_path / "model/model.safetensors").write_bytes(b"broken")
    pipelines = load_grpo(model=tmp_path / "model").pipelines
    with pytest.raises(ConfigError, match="cannot be loaded"):
        run(pipelines, out=str(tmp_path / "run"), steps=1)
    assert not (tmp_path / "run").exists()


def test_metrics_cannot_overwrite_the_names_of_a_line() -> None:
    record = Record("grpo", 3, {"step": 9.0, "pipeline": 1.0, "x": 2.0}, 0.5, {})
    line = record.to_dict()
    assert (line["pipeline"], line["step"], line["x"]) == ("grpo", 3, 2.0)
    assert list(line)[:2] == ["pipeline", "step"]


def test_a_config_with_nan_is_still_json(tmp_path: Path) -> None:
    pipelines = load_grpo(batch_size=2, n=2).pipelines[:1]
    run(pipelines, out=str(tmp_path / "run"), steps=1, config={"x": math.nan, "path": Path("a")})
    assert json.loads((tmp_path / "run/config.json").read_text())["x"] is None
