"""Stop and go on: every number is that of the run that was never stopped, on any file system."""

import json
import logging
import signal
from collections.abc import Iterable
from pathlib import Path
from typing import Any

import pytest
from support import edited_pipeline, load_grpo, run_grpo, untimed

from dagrl.cli.pipeline_file import LoadedPipelines
from dagrl.compiler import Machine
from dagrl.errors import ConfigError, NodeError, ResumeError
from dagrl.executor.local import LocalRuntime
from dagrl.storage.folder import Folder
from dagrl.storage.run_folder import contents
from dagrl.storage.segments import read_lines
from dagrl.trainer.loop import run
from dagrl.trainer.records import Record, RunResult
from dagrl.trainer.saving import Saving
from dagrl.trainer.stopping import StopRequest

QUICK = {"batch_size": 2, "n": 2, "precision": "fp32"}


@pytest.fixture
def data(tmp_path: Path) -> Path:
    """Forty rows to train on, five to evaluate on."""
    folder = tmp_path / "data"
    folder.mkdir()
    for name, numbers in (("train", range(100, 140)), ("test", range(200, 205))):
        rows = [json.dumps({"prompt": f"{number} {number + 1}", "answer": str(number + 1)}) for number in numbers]
        (folder / f"{name}.jsonl").write_text("\n".join(rows) + "\n")
    return folder


def go(
    loaded: LoadedPipelines,
    out: str,
    *,
    steps: int,
    stop_after: int | None = None,
    evaluate: bool = True,
    **options: Any,
) -> RunResult:
    """Run, resuming if there is something to; a request to stop comes when step ``stop_after`` is recorded."""
    stop = StopRequest()

    def on_record(record: Record) -> None:
        if record.step == stop_after and record.pipeline == "grpo":
            stop.signal = signal.SIGTERM

    values = {"config": {"batch_size": str(loaded.config.batch_size), "lr": loaded.config.lr}}
    pipelines = loaded.pipelines if evaluate else loaded.pipelines[:1]
    given: dict[str, Any] = {"resume": "auto", "config": values, **options}
    return run(pipelines, out=out, steps=steps, stop=stop, on_record=on_record, **given)


def metrics(url: str) -> list[dict[str, Any]]:
    return [untimed(line) for line in read_lines(url, "metrics")]


def weights(url: str) -> bytes:
    return Folder(url).read("model/model.safetensors")


def assert_equal_runs(left: str, right: str) -> None:
    assert metrics(left) == metrics(right)
    assert weights(left) == weights(right)


def steps_of(lines: Iterable[dict[str, Any]], pipeline: str = "grpo") -> list[int]:
    return [line["step"] for line in lines if line["pipeline"] == pipeline]


def test_four_steps_equal_two_and_two_on_any_file_system(tmp_path: Path, data: Path, any_url: str) -> None:
    loaded = load_grpo(**QUICK, data=data, eval_every=2)
    go(loaded, str(tmp_path / "whole"), steps=4)
    first = go(loaded, any_url, steps=4, stop_after=2)
    assert (first.step, first.stopped_by, first.resumed_from) == (2, signal.SIGTERM, None)
    assert first.saved == f"{any_url}/checkpoints/step_000002"
    assert "model" not in contents(any_url)
    second = go(loaded, any_url, steps=4)
    assert (second.step, second.stopped_by, second.resumed_from) == (4, None, 2)
    assert_equal_runs(str(tmp_path / "whole"), any_url)
    assert steps_of(metrics(any_url), "eval") == [0, 2, 4]


@pytest.mark.parametrize("precision", ["fp32", "bf16"])
@pytest.mark.parametrize("cut", [1, 3])
def test_the_place_of_the_cut_does_not_matter(tmp_path: Path, cut: int, precision: str) -> None:
    loaded = load_grpo(batch_size=2, n=2, precision=precision, mini_batch_size=2, lr=1e-3)
    go(loaded, str(tmp_path / "whole"), steps=4, evaluate=False)
    go(loaded, str(tmp_path / "cut"), steps=4, stop_after=cut, evaluate=False)
    go(loaded, str(tmp_path / "cut"), steps=4, evaluate=False)
    assert_equal_runs(str(tmp_path / "whole"), str(tmp_path / "cut"))


SEEN = """
@node()
def seen(answers: Objects[str]) -> Metrics:
    \"\"\"Which rows a step reads: each answer is a bit of its own.\"\"\"
    return Metrics({"seen": Sum(float(sum(int(answer) for answer in set(answers))))})
"""


@pytest.mark.parametrize("cut", [1, 3])
def test_ten_rows_in_batches_of_three_for_two_epochs(tmp_path: Path, cut: int) -> None:
    (tmp_path / "bits.py").write_text(
        f"from dagrl import Metrics, Objects, node\nfrom dagrl.data.metrics import Sum\n{SEEN}"
    )
    file = edited_pipeline(
        tmp_path,
        ("from dagrl.nodes import (", "from bits import seen\nfrom dagrl.nodes import ("),
        ("        reward = verify", "        seen(batch)\n        reward = verify"),
    )
    rows = [json.dumps({"prompt": f"{number}00 {number}01", "answer": str(2**number)}) for number in range(10)]
    (tmp_path / "rows.jsonl").write_text("\n".join(rows) + "\n")
    loaded = load_grpo(file, data=tmp_path / "rows.jsonl", batch_size=3, n=2)
    for out in ("whole", "cut"):
        go(loaded, str(tmp_path / out), steps=6, stop_after=cut if out == "cut" else None, evaluate=False)
    assert steps_of(metrics(str(tmp_path / "cut"))) == list(range(1, cut + 1))
    go(loaded, str(tmp_path / "cut"), steps=6, evaluate=False)
    assert_equal_runs(str(tmp_path / "whole"), str(tmp_path / "cut"))
    lines = metrics(str(tmp_path / "cut"))
    assert steps_of(lines) == [1, 2, 3, 4, 5, 6]
    for epoch in (lines[:3], lines[3:]):
        read = [int(line["seen"]) for line in epoch]
        assert sum(read) == read[0] | read[1] | read[2]
        assert all(bin(bits).count("1") == 3 for bits in read)


def test_the_random_numbers_and_states_of_nodes_go_on(tmp_path: Path) -> None:
    (tmp_path / "drawing.py").write_text(
        "import random\nfrom dataclasses import dataclass\nimport numpy as np\nimport torch\n"
        "from jaxtyping import Float32\nfrom torch import Tensor\n"
        "from dagrl import Metrics, node\nfrom dagrl.data.metrics import Mean\n\n"
        "random.seed(1), np.random.seed(1), torch.manual_seed(1)\n\n"
        "@dataclass(frozen=True)\nclass Past:\n    sums: tuple[float, ...]\n"
        "    last: Tensor\n    best: float = -float('inf')\n\n"
        '@node(split="batch")\n'
        'def draw(rewards: Float32[Tensor, " B"], *, state: Past) -> tuple[Past, Metrics]:\n'
        '    """Random numbers, and what came before."""\n'
        "    drawn = {'r': random.gauss(0, 1), 'n': float(np.random.normal()), 't': float(torch.rand(1))}\n"
        "    sums = (*state.sums, float(rewards.sum()))\n"
        "    new = Past(sums, state.last * 0.5 + rewards.mean(), max(state.best, drawn['r']))\n"
        "    kept = {'sums': sum(new.sums), 'last': float(new.last), 'best': new.best}\n"
        "    return new, Metrics({name: Mean(value, 1.0) for name, value in {**drawn, **kept}.items()})\n"
    )
    file = edited_pipeline(
        tmp_path,
        ("from dagrl.nodes import (", "import torch\nfrom drawing import Past, draw\nfrom dagrl.nodes import ("),
        (
            "        advantages = advantage",
            "        draw(reward, state=Past((), torch.tensor(1.0)))\n        advantages = advantage",
        ),
    )
    for out, cuts in (("whole", [None]), ("cut", [1, 3, None])):
        for cut in cuts:
            # Loaded anew, as a new process would: the module seeds again.
            __import__("sys").modules.pop("drawing", None)
            loaded = load_grpo(file, **QUICK)
            go(loaded, str(tmp_path / out), steps=4, stop_after=cut, evaluate=False)
    assert_equal_runs(str(tmp_path / "whole"), str(tmp_path / "cut"))
    assert len({line["r"] for line in metrics(str(tmp_path / "cut"))}) == 4
    file.write_text(file.read_text().replace("torch.tensor(1.0)", "torch.tensor(2.0)"))
    with pytest.raises(ResumeError, match=r"`pipelines.grpo.calls.draw.state` was .*tensor\(1.\)"):
        go(load_grpo(file, **QUICK), str(tmp_path / "cut"), steps=5, evaluate=False)


def test_a_state_that_no_checkpoint_can_hold_is_refused_before_anything_starts(tmp_path: Path) -> None:
    (tmp_path / "listing.py").write_text(
        "from dataclasses import dataclass\nfrom jaxtyping import Float32\nfrom torch import Tensor\n"
        "from dagrl import Metrics, node\n\n"
        "@dataclass(frozen=True)\nclass Past:\n    sums: list[float]\n\n"
        '@node(split="batch")\n'
        'def keep(rewards: Float32[Tensor, " B"], *, state: Past) -> Past:\n'
        '    """Keeps a list."""\n    return state\n'
    )
    file = edited_pipeline(
        tmp_path,
        ("from dagrl.nodes import (", "from listing import Past, keep\nfrom dagrl.nodes import ("),
        (
            "        advantages = advantage",
            "        keep(reward, state=Past([]))\n        advantages = advantage",
        ),
    )
    with pytest.raises(ConfigError) as refused:
        go(load_grpo(file), str(tmp_path / "run"), steps=1)
    assert "the state of `keep` cannot be saved: `Past.sums` is `list[float]`" in str(refused.value)
    assert "edited.py:" in str(refused.value)
    assert not (tmp_path / "run").exists()


def test_a_state_that_its_class_does_not_declare_is_refused_when_it_is_returned(tmp_path: Path) -> None:
    (tmp_path / "wrong.py").write_text(
        "from dataclasses import dataclass\nfrom jaxtyping import Float32\nfrom torch import Tensor\n"
        "from dagrl import Metrics, node\n\n"
        "@dataclass(frozen=True)\nclass Past:\n    sums: tuple[float, ...]\n\n"
        '@node(split="batch")\n'
        'def keep(rewards: Float32[Tensor, " B"], *, state: Past) -> Past:\n'
        '    """Keeps what it does not declare."""\n    return Past(rewards.tolist())\n'
    )
    file = edited_pipeline(
        tmp_path,
        ("from dagrl.nodes import (", "from wrong import Past, keep\nfrom dagrl.nodes import ("),
        (
            "        advantages = advantage",
            "        keep(reward, state=Past(()))\n        advantages = advantage",
        ),
    )
    with pytest.raises(NodeError, match=r"the state of `keep`\.sums is a list where its class declares `tuple"):
        go(load_grpo(file, **QUICK), str(tmp_path / "run"), steps=1, evaluate=False)


def test_checkpoints_come_every_k_steps_and_after_the_last(tmp_path: Path, data: Path) -> None:
    loaded = load_grpo(**QUICK, data=data, eval_every=2)
    result = go(loaded, str(tmp_path / "run"), steps=5, saving=Saving(2, 9))
    assert contents(str(tmp_path / "run/checkpoints")) == ["step_000002", "step_000004", "step_000005"]
    assert result.saved == str(tmp_path / "run/checkpoints/step_000005")
    saved = [event for event in read_lines(str(tmp_path / "run"), "events") if event["event"] == "CheckpointSaved"]
    assert [event["step"] for event in saved] == [2, 4, 5]
    assert all(event["bytes"] > 1e6 for event in saved)
    run_grpo(tmp_path / "none", steps=1, **QUICK)
    assert "checkpoints" not in contents(str(tmp_path / "none"))


def test_a_run_that_is_done_ends_at_once_and_one_without_its_model_exports_it(tmp_path: Path) -> None:
    loaded, out = load_grpo(**QUICK), str(tmp_path / "run")
    go(loaded, out, steps=2, saving=Saving(2), evaluate=False)
    model, lines = weights(out), metrics(out)
    stamp = (tmp_path / "run/model/config.json").stat().st_mtime_ns
    again = go(loaded, out, steps=2, evaluate=False)
    assert (again.step, again.resumed_from, again.records) == (2, 2, ())
    assert (tmp_path / "run/model/config.json").stat().st_mtime_ns == stamp
    (tmp_path / "run/model/config.json").unlink()
    again = go(loaded, out, steps=2, evaluate=False)
    assert (again.step, again.resumed_from, again.records) == (2, 2, ())
    assert (weights(out), metrics(out)) == (model, lines)


def test_a_run_without_a_checkpoint_starts_again(tmp_path: Path) -> None:
    loaded, out = load_grpo(**QUICK), str(tmp_path / "run")
    go(loaded, str(tmp_path / "whole"), steps=2, evaluate=False)

    def fail(record: Record) -> None:
        raise RuntimeError("power is out")

    with pytest.raises(RuntimeError, match="power"):
        run(loaded.pipelines[:1], out=out, steps=2, on_record=fail)
    starts = []
    go(loaded, out, steps=2, evaluate=False, on_start=starts.append)
    assert [(start.resumed_from, start.again) for start in starts] == [(None, True)]
    assert_equal_runs(str(tmp_path / "whole"), out)


def test_a_finished_run_without_checkpoints_is_left_alone(tmp_path: Path) -> None:
    loaded, out = load_grpo(**QUICK), str(tmp_path / "run")
    go(loaded, out, steps=1, evaluate=False)
    model = weights(out)
    with pytest.raises(ConfigError, match=r"there is a run in .*, and no sound checkpoint of it"):
        go(loaded, out, steps=2, evaluate=False)
    assert weights(out) == model


def test_everything_that_has_changed_is_named(tmp_path: Path) -> None:
    out = str(tmp_path / "run")
    go(load_grpo(**QUICK), out, steps=4, stop_after=1, evaluate=False)
    before = metrics(out)
    with pytest.raises(ResumeError) as refused:
        go(load_grpo(**{**QUICK, "batch_size": 4}, lr=0.5), out, steps=4, evaluate=False, seed=3)
    message = str(refused.value)
    for text in ("`seed` was `0` and is `3`", "`batch_size` was `2` and is `4`", "`lr` was `0.00025` and is `0.5`"):
        assert text in message
    assert "3 problems" in message
    assert "set `lr` as it was, or give a new `--out`" in message
    assert f"{out}/checkpoints/step_000001" in message
    assert metrics(out) == before


def test_knobs_that_change_no_number_and_new_ones_are_free(tmp_path: Path) -> None:
    out = str(tmp_path / "run")
    before, now = ({"lr": "1", "workers": "1", "micro_batch_size": "0", "gone": "3"}, {"lr": "1", "new": "4"})
    now |= {"workers": "2", "micro_batch_size": "1"}
    first, second = load_grpo(**QUICK), load_grpo(**QUICK, micro_batch_size=1)
    go(first, out, steps=2, stop_after=1, evaluate=False, config={"config": before})
    assert go(second, out, steps=2, evaluate=False, config={"config": now}).resumed_from == 1


def test_an_edited_pipeline_file_is_another_run(tmp_path: Path) -> None:
    out = str(tmp_path / "run")
    go(load_grpo(**QUICK), out, steps=4, stop_after=1, evaluate=False)
    moved = edited_pipeline(tmp_path, ("@dataclass(frozen", "# only a comment\n@dataclass(frozen"))
    go(load_grpo(moved, **QUICK), out, steps=4, stop_after=2, evaluate=False)
    edits = (("temperature=cfg.temperature", "temperature=0.5"), ("warmup=20", "warmup=3"))
    changed = edited_pipeline(tmp_path, *edits, name="other.py")
    with pytest.raises(ResumeError) as refused:
        go(load_grpo(changed, **QUICK), out, steps=4, evaluate=False)
    message = str(refused.value)
    assert "the pipeline file has changed: `pipelines.grpo.calls.generate.options.temperature` was" in message
    assert "`groups.actor.optimizer" in message
    assert "warmup=3" in message


def test_other_data_is_another_run(tmp_path: Path) -> None:
    rows = [json.dumps({"prompt": f"{number}00 {number}01", "answer": f"{number}01"}) for number in range(1, 9)]
    (tmp_path / "rows.jsonl").write_text("\n".join(rows) + "\n")
    loaded = load_grpo(data=tmp_path / "rows.jsonl", **QUICK)
    go(loaded, str(tmp_path / "run"), steps=4, stop_after=1, evaluate=False)
    (tmp_path / "rows.jsonl").write_text("\n".join(rows[:-1]) + "\n")
    with pytest.raises(ResumeError, match="the data of `prompts` had 8 rows and has 7"):
        go(loaded, str(tmp_path / "run"), steps=4, evaluate=False)


def test_steps_may_change_and_a_warning_says_what_that_means(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    loaded, out = load_grpo(**QUICK), str(tmp_path / "run")
    go(loaded, out, steps=2, saving=Saving(1, 9), evaluate=False)
    with caplog.at_level(logging.WARNING):
        grown = go(loaded, out, steps=4, saving=Saving(1, 9), evaluate=False)
    assert (grown.resumed_from, grown.step) == (2, 4)
    assert "`steps` was 2 and is 4: from step 3 on, the learning rates" in caplog.text
    assert steps_of(metrics(out)) == [1, 2, 3, 4]
    with pytest.raises(ResumeError, match="is of step 4, and steps=3"):
        go(loaded, out, steps=3, evaluate=False)


def test_a_damaged_newest_checkpoint_costs_its_steps_only(
    tmp_path: Path, data: Path, caplog: pytest.LogCaptureFixture
) -> None:
    loaded = load_grpo(**QUICK, data=data, eval_every=2)
    go(loaded, str(tmp_path / "whole"), steps=4)
    out = str(tmp_path / "run")
    go(loaded, out, steps=4, stop_after=3, saving=Saving(1))
    part = tmp_path / "run/checkpoints/step_000003/actor-00000.safetensors"
    part.write_bytes(part.read_bytes()[:-5])
    again = go(loaded, out, steps=4)
    assert again.resumed_from == 2
    assert "step_000003` is passed over: `actor-00000.safetensors` has" in caplog.text
    assert_equal_runs(str(tmp_path / "whole"), out)


def test_a_run_without_a_sound_checkpoint_is_left_alone(tmp_path: Path) -> None:
    """Starting again there would drop its metrics and its checkpoints."""
    loaded, out = load_grpo(**QUICK), tmp_path / "run"
    go(loaded, str(out), steps=4, stop_after=2, evaluate=False, saving=Saving(1, 2))
    for part in out.glob("checkpoints/*/actor-00000.safetensors"):
        part.write_bytes(part.read_bytes()[:-1])
    before = metrics(str(out))
    with pytest.raises(ConfigError, match="no sound checkpoint of it to go on from"):
        go(loaded, str(out), steps=4, evaluate=False)
    assert metrics(str(out)) == before
    assert len(list(out.glob("checkpoints/step_*"))) == 2


def test_a_run_folder_in_memory_is_refused_where_other_processes_write_to_it() -> None:
    class Elsewhere(LocalRuntime):
        machine = Machine("ray", (2,), 4)

    with pytest.raises(ConfigError, match="is memory of one process"):
        go(load_grpo(**QUICK), "memory://elsewhere/run", steps=1, runtime=Elsewhere())
    assert contents("memory://elsewhere/run") == []


def test_a_run_whose_trained_weights_are_offloaded_goes_on_with_them(tmp_path: Path, data: Path) -> None:
    file = edited_pipeline(tmp_path, ("rollout=cfg.rollout)", "rollout=cfg.rollout, offload=True)"))
    loaded = load_grpo(file, **QUICK, data=data, eval_every=2)
    go(loaded, str(tmp_path / "whole"), steps=3)
    go(loaded, str(tmp_path / "cut"), steps=3, stop_after=1)
    result = go(loaded, str(tmp_path / "cut"), steps=3)
    assert result.resumed_from == 1
    assert_equal_runs(str(tmp_path / "whole"), str(tmp_path / "cut"))
