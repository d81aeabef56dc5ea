"""Runs whose rewards come from a user's function, in each of the three shapes, and what goes wrong with one."""

import gc
import json
import logging
import subprocess
import sys
from pathlib import Path

import psutil
import pytest
from support import ROOT, edited_pipeline, load_grpo, metrics_lines, run_grpo

from dagrl.compiler import compile_pipelines
from dagrl.errors import CompileError, NodeError

CODE = """
def columns(*, response_text, answers, truncated):
    return [float(text.strip() == answer and not cut) for text, answer, cut in zip(response_text, answers, truncated)]

def compute_score(data_source, solution_str, ground_truth, extra_info=None):
    assert data_source.startswith("larger/")
    right = solution_str.strip() == ground_truth
    return {"score": float(right), "acc": right, "pred": solution_str}

async def accuracy(prompts, completions, answer, **kwargs):
    assert len(prompts) == len(completions) == len(answer)
    texts = [one if isinstance(one, str) else one[0]["content"] for one in completions]
    return [1.0 if text.strip() == right else 0.0 for text, right in zip(texts, answer)]

def fails_on_some(data_source, solution_str, ground_truth, extra_info=None):
    if solution_str.strip() != ground_truth:
        raise RuntimeError("wrong, and I will not say how wrong")
    return 1.0
"""


def pipeline_with(folder: Path, function: str, options: str = "") -> Path:
    """The shipped pipeline with a function in a file beside it as the reward of the step."""
    (folder / "my_rewards.py").write_text(CODE)
    return edited_pipeline(
        folder,
        ("    verify,\n", "    reward_function,\n    verify,\n"),
        ("verify(batch, rollout)", f"reward_function(batch, rollout, function={function!r}{options})"),
    )


@pytest.fixture(scope="module")
def by_verify(tmp_path_factory: pytest.TempPathFactory) -> list[float]:
    folder = tmp_path_factory.mktemp("verify") / "run"
    run_grpo(folder, steps=2)
    return [line["reward/mean"] for line in metrics_lines(folder)]


@pytest.mark.parametrize("name", ["columns", "compute_score", "accuracy"])
def test_each_shape_rewards_as_the_built_in_check_does(name: str, tmp_path: Path, by_verify: list[float]) -> None:
    run_grpo(tmp_path / "run", steps=2, file=pipeline_with(tmp_path, f"{tmp_path}/my_rewards.py:{name}"))
    lines = metrics_lines(tmp_path / "run")
    assert [line["reward/mean"] for line in lines] == by_verify
    assert [line["reward/failed_rows"] for line in lines] == [0.0, 0.0]
    if name == "compute_score":
        assert [line["reward/score/acc"] for line in lines] == by_verify
        assert "reward/score/pred" not in lines[0]


def test_failed_rows_leave_their_groups_and_are_counted_and_shown(
    tmp_path: Path, caplog: pytest.LogCaptureFixture, by_verify: list[float]
) -> None:
    file = pipeline_with(tmp_path, f"{tmp_path}/my_rewards.py:fails_on_some", ", max_failed_share=1.0")
    with caplog.at_level(logging.WARNING):
        run_grpo(tmp_path / "run", steps=1, file=file)
    (line,) = metrics_lines(tmp_path / "run")
    failed = round(32 * (1 - by_verify[0]))
    assert failed > 0
    assert line["reward/failed_rows"] == line["reward/unscorable"] == line["group/unscorable_rows"] == failed
    assert line["reward/mean"] == 1.0
    assert f"failed on {failed} of 32 rows" in caplog.text
    assert "RuntimeError: wrong, and I will not say how wrong" in caplog.text


def test_too_many_failed_rows_end_the_run_with_one_error(tmp_path: Path) -> None:
    file = pipeline_with(tmp_path, f"{tmp_path}/my_rewards.py:fails_on_some", ", max_failed_share=0.01")
    with pytest.raises(NodeError) as caught:
        run_grpo(tmp_path / "run", steps=2, file=file)
    assert "more than max_failed_share=0.01 allows" in str(caught.value)
    assert str(caught.value).count(f"{tmp_path}/my_rewards.py:17: raise RuntimeError") == 3
    assert any("in node `reward_function`" in note and "step 1" in note for note in caught.value.__notes__)


@pytest.mark.parametrize(
    ("function", "options", "message"),
    [
        ("my_rewards.py:acuracy", "", "`function`: `my_rewards.py` has no `acuracy`; did you mean `accuracy`?"),
        ("my_reward.py:accuracy", "", "there is no file `my_reward.py`"),
        ("my_rewardz:accuracy", "", "there is no module `my_rewardz`; did you mean `my_rewards`?"),
        ("accuracy", "", "'accuracy' is no reference to a function"),
        ("my_rewards.py:accuracy", ", time_limit=0.0", "`time_limit` is a number of seconds above 0, got 0.0"),
        ("my_rewards.py:accuracy", ", processes=-1", "`processes` is a number of processes"),
        ("my_rewards.py:accuracy", ", max_failed_share=2.0", "`max_failed_share` is a share from 0 to 1, got 2.0"),
        ("my_rewards.py:accuracy", ", shape='verl'", "it requires `answer`, `completions`, `prompts`"),
        ("my_rewards.py:accuracy", ", shape='ours'", "shape"),
        ("my_rewards.py:accuracy", ", time_limits=1.0", "did you mean `time_limit`?"),
    ],
)
def test_a_wrong_reference_is_a_compile_error(function: str, options: str, message: str, tmp_path: Path) -> None:
    file = pipeline_with(tmp_path, function, options)
    with pytest.raises(CompileError) as caught:
        compile_pipelines(load_grpo(file).pipelines[:1])
    assert message in str(caught.value)
    assert "edited.py:" in str(caught.value)


def test_a_reward_that_needs_a_column_nobody_passes_is_a_compile_error(tmp_path: Path) -> None:
    file = pipeline_with(tmp_path, f"{tmp_path}/my_rewards.py:columns")
    file.write_text(file.read_text().replace("reward_function(batch, ", 'reward_function(batch.only("messages"), '))
    with pytest.raises(CompileError, match="it requires `answers`"):
        compile_pipelines(load_grpo(file).pipelines[:1])


def test_no_process_is_left_when_the_executor_is_gone(tmp_path: Path) -> None:
    before = {child.pid for child in psutil.Process().children(recursive=True)}
    run_grpo(tmp_path / "run", steps=1, file=pipeline_with(tmp_path, f"{tmp_path}/my_rewards.py:columns"))
    gc.collect()
    left = [one for one in psutil.Process().children(recursive=True) if one.pid not in before]
    assert [one.cmdline() for one in left if "resource_tracker" not in " ".join(one.cmdline())] == []


def test_the_command_runs_it_from_another_folder_and_leaves_no_process(tmp_path: Path) -> None:
    file = pipeline_with(tmp_path, "my_rewards.py:columns")
    file.write_text(file.read_text().replace("return step, held_out", "return step"))
    command = [sys.executable, "-m", "dagrl.cli", "run", str(file), "--steps", "1", "--out", str(tmp_path / "run")]
    settings = ["--set", "batch_size=4", "--set", "n=2", "--set", "eval_every=1000"]
    done = subprocess.run([*command, *settings], cwd=ROOT, capture_output=True, text=True, timeout=120)
    assert done.returncode == 0, done.stderr
    (line,) = [line for line in metrics_lines(tmp_path / "run") if line["pipeline"] == "grpo"]
    assert line["reward/failed_rows"] == 0.0
    plan = json.loads((tmp_path / "run/plan.json").read_text())
    assert "reward_function" in json.dumps(plan)
    assert not [one for one in psutil.process_iter() if str(tmp_path) in " ".join(_command(one))]


def _command(process: psutil.Process) -> list[str]:
    try:
        return process.cmdline()
    except psutil.Error:
        return []


def test_prompts_without_answers_serve_a_reward_that_needs_none(tmp_path: Path) -> None:
    """TRL's prompt-only datasets: an optional read of `answers` asks for nothing."""
    rows = [json.dumps({"prompt": f"{a} {a + 1}"}) for a in range(300, 332)]
    (tmp_path / "prompts.jsonl").write_text("\n".join(rows))
    (tmp_path / "mine.py").write_text(
        "def brief(prompts, completions, **columns):\n    return [1.0 for _ in completions]\n"
    )
    text = (ROOT / "pipelines/grpo.py").read_text()
    text = text.replace("    verify,\n", "    reward_function,\n    verify,\n")
    text = text.replace(
        "reward = verify(batch, rollout)", 'reward = reward_function(batch, rollout, function="mine.py:brief")'
    )
    text = text.replace("return step, held_out", "return step").replace("tuple[Pipeline, Pipeline]", "Pipeline")
    (tmp_path / "pipeline.py").write_text(text)
    command = [sys.executable, "-m", "dagrl.cli", "run", str(tmp_path / "pipeline.py"), "--steps", "1"]
    options = ["--set", f"data={tmp_path}/prompts.jsonl", "--set", "batch_size=4", "--out", str(tmp_path / "run")]
    done = subprocess.run([*command, *options], cwd=ROOT, capture_output=True, text=True, timeout=200)
    assert done.returncode == 0, done.stderr
