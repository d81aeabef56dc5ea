"""Runs with a refill block: which prompts rounds read, what a checkpoint holds of it, and steps with too few groups."""

import json
import logging
import signal
from pathlib import Path
from typing import Any

import pytest
from support import ROOT, event_lines, load_grpo, metrics_lines

from dagrl.cli.pipeline_file import LoadedPipelines, load_pipelines
from dagrl.errors import CompileError, ResumeError
from dagrl.executor.events import Event, OpStarted, RoundStarted
from dagrl.storage.checkpoints import Checkpoints
from dagrl.storage.folder import Folder
from dagrl.trainer.data_order import DataStream, ShuffledOrder
from dagrl.trainer.loop import run
from dagrl.trainer.records import Record, RunResult
from dagrl.trainer.saving import Saving
from dagrl.trainer.stopping import StopRequest

DAPO = ROOT / "pipelines" / "dapo.py"
SMALL = {"batch_size": 6, "groups": 5, "max_rounds": 3, "n": 4, "precision": "fp32", "lr": 1e-3, "eval_every": 1000}


def load(file: Path = DAPO, **values: Any) -> LoadedPipelines:
    return load_pipelines(str(file), {key: str(value) for key, value in {**SMALL, **values}.items()})


def go(
    loaded: LoadedPipelines,
    out: Path,
    *,
    steps: int,
    stop_after: int | None = None,
    pipeline: str = "dapo",
    **options: Any,
) -> RunResult:
    """Run or go on; a request to stop comes when step ``stop_after`` is recorded."""
    stop = StopRequest()

    def on_record(record: Record) -> None:
        if record.step == stop_after and record.pipeline == pipeline:
            stop.signal = signal.SIGTERM

    given: dict[str, Any] = {"resume": "auto", **options}
    return run(loaded.pipelines[:1], out=str(out), steps=steps, stop=stop, on_record=on_record, **given)


def numbered(folder: Path, count: int, answer: str = "") -> Path:
    """Data of that many rows, whose answers a model that counts gives, or never."""
    rows = [{"prompt": f"{n}00 {n}01", "answer": answer or f"{n}02"} for n in range(1, count + 1)]
    path = folder / "rows.jsonl"
    path.write_text("".join(json.dumps(row) + "\n" for row in rows))
    return path


def test_a_stream_goes_on_where_it_was() -> None:
    order = ShuffledOrder(10, 3, seed=0)
    stream = DataStream(order)
    drawn = [stream.draw() for _ in range(5)]
    assert [rows.group_ids.tolist() for rows in drawn] == [list(range(n, n + 3)) for n in (0, 3, 6, 9, 12)]
    assert stream.drawn == 5
    again = DataStream(order, 3)
    assert again.draw().positions.tolist() == drawn[3].positions.tolist() == order.rows(3).positions.tolist()


def test_rounds_read_on_and_every_step_after_what_the_one_before_has_read(tmp_path: Path) -> None:
    result = go(load(), tmp_path / "run", steps=3)
    rounds = [int(record.metrics["refill/rounds"]) for record in result.records]
    started = [line for line in event_lines(tmp_path / "run") if line["event"] == "RoundStarted"]
    assert len(started) == sum(rounds) > 3
    for record in result.records:
        drawn = 6 * record.metrics["refill/rounds"]
        names = ("kept", "dropped", "left_over")
        assert sum(record.metrics[f"refill/groups_{name}"] for name in names) == drawn
        assert record.metrics["refill/short"] == (record.metrics["refill/groups_kept"] < 5)
    saved = json.loads((tmp_path / "run/plan.json").read_text())
    assert saved[0]["ops"][0]["kind"] == "loop"


@pytest.mark.parametrize("cut", [1, 3])
def test_a_resumed_run_is_the_one_that_was_never_stopped(tmp_path: Path, cut: int) -> None:
    go(load(), tmp_path / "whole", steps=4)
    first = go(load(), tmp_path / "cut", steps=4, stop_after=cut)
    assert first.step == cut
    second = go(load(), tmp_path / "cut", steps=4)
    assert second.resumed_from == cut
    assert metrics_lines(tmp_path / "whole") == metrics_lines(tmp_path / "cut")
    whole, parts = (Folder(str(tmp_path / name)).read("model/model.safetensors") for name in ("whole", "cut"))
    assert whole == parts
    assert sum(line["refill/rounds"] for line in metrics_lines(tmp_path / "cut")) > 4  # else batch and step are one


def test_an_epoch_ends_inside_a_step(tmp_path: Path) -> None:
    """Eight rows in rounds of six are one round an epoch: no row is read twice in a round, and rounds go on."""
    data = numbered(tmp_path, 8, answer="never")
    result = go(load(data=data, max_rounds=3), tmp_path / "run", steps=2)
    assert [record.metrics["refill/rounds"] for record in result.records] == [3, 3]
    again = go(load(data=data, max_rounds=3), tmp_path / "again", steps=2, stop_after=1)
    assert again.step == 1
    go(load(data=data, max_rounds=3), tmp_path / "again", steps=2)
    assert metrics_lines(tmp_path / "run") == metrics_lines(tmp_path / "again")


def test_data_smaller_than_a_round_is_refused(tmp_path: Path) -> None:
    with pytest.raises(CompileError, match="has 4 rows in the split `train`, fewer than batch_size=6"):
        go(load(data=numbered(tmp_path, 4)), tmp_path / "run", steps=1)


def test_steps_without_a_group_skip_the_update_and_the_run_goes_on(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    loaded = load(data=numbered(tmp_path, 20, answer="never"))
    with caplog.at_level(logging.WARNING):
        result = run(loaded.pipelines[:1], out=str(tmp_path / "run"), steps=2)
    assert result.step == 2
    for record in result.records:
        assert record.metrics["skipped_updates"] == 1
        assert record.metrics["refill/groups_kept"] == 0
        assert record.metrics["refill/short"] == 1
        assert "actor/loss" not in record.metrics
    told = [text for text in caplog.messages if "trains on nothing" in text]
    assert len(told) == 2
    assert "step 2 trains on nothing: 0 of 5 groups passed `refill` (dapo.py:" in told[1]


def test_an_evaluation_beside_walks_its_own_data(tmp_path: Path) -> None:
    loaded = load(eval_every=1)
    heard: list[Event] = []
    result = run(loaded.pipelines, out=str(tmp_path / "run"), steps=2, on_event=heard.append)
    assert [record.step for record in result.records if record.pipeline == "eval"] == [0, 1, 2]
    assert {event.pipeline for event in heard if isinstance(event, RoundStarted)} == {"dapo"}
    alone = go(load(eval_every=1), tmp_path / "alone", steps=2)
    trained = [record.metrics for record in result.records if record.pipeline == "dapo"]
    assert trained == [record.metrics for record in alone.records]


def test_a_request_to_stop_inside_a_loop_ends_the_run_after_the_step(tmp_path: Path) -> None:
    heard: list[Event] = []

    def interrupt(event: Event) -> None:
        heard.append(event)
        if isinstance(event, RoundStarted) and event.round == 2 and stop.signal is None:
            signal.raise_signal(signal.SIGINT)

    stop = StopRequest()
    pipelines = load(groups=18).pipelines[:1]  # as many as three rounds have: no step has enough before the last
    result = run(pipelines, out=str(tmp_path / "run"), steps=5, stop=stop, on_event=interrupt)
    assert (result.step, result.stopped_by) == (1, signal.SIGINT)
    assert [event.op for event in heard if isinstance(event, OpStarted)][-1] == "update_policy"
    assert [event.round for event in heard if isinstance(event, RoundStarted)] == [1, 2, 3]
    second = run(pipelines, out=str(tmp_path / "run"), steps=2, resume="auto")
    assert second.resumed_from == 1


def test_another_block_is_another_run(tmp_path: Path) -> None:
    go(load(), tmp_path / "run", steps=3, stop_after=1)
    with pytest.raises(ResumeError, match=r"`pipelines.dapo.loops.refill.groups` was `5` and is `4`"):
        go(load(groups=4), tmp_path / "run", steps=3)


def test_a_checkpoint_says_how_much_of_the_data_is_drawn(tmp_path: Path) -> None:
    result = go(load(), tmp_path / "run", steps=2, saving=Saving(every=1, keep=2))
    rounds = [int(record.metrics["refill/rounds"]) for record in result.records]
    for step, drawn in ((1, rounds[0]), (2, sum(rounds))):
        manifest = json.loads((tmp_path / f"run/checkpoints/step_{step:06}/manifest.json").read_text())
        assert f'"drawn": {{"prompts": {drawn}}}' in json.dumps(manifest)


def test_a_checkpoint_that_does_not_say_it_is_of_one_batch_a_step(tmp_path: Path) -> None:
    loaded = load_grpo(batch_size=2, n=2, precision="fp32")
    for out, cut in (("whole", None), ("cut", 2)):
        go(loaded, tmp_path / out, steps=4, stop_after=cut, pipeline="grpo")
    checkpoints = Checkpoints(str(tmp_path / "cut/checkpoints"), keep=2)
    found = checkpoints.latest_valid()
    assert found is not None
    assert found.state.pop("drawn") == {"prompts": 2}
    checkpoints.publish(found.step, list(found.parts), found.state)
    assert go(loaded, tmp_path / "cut", steps=4).resumed_from == 2
    assert metrics_lines(tmp_path / "whole") == metrics_lines(tmp_path / "cut")
