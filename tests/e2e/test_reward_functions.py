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
from dagrl.executor.local import LocalRuntime

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
    assert (
        f"failed on {failed} of the 32 rows of this step, which are left out (max_failed_share=1 allows 32)"
        in caplog.text
    )
    assert "RuntimeError: wrong, and I will not say how wrong" in caplog.text


def test_too_many_failed_rows_end_the_run_with_one_error(tmp_path: Path) -> None:
    file = pipeline_with(tmp_path, f"{tmp_path}/my_rewards.py:fails_on_some", ", max_failed_share=0.01")
    with pytest.raises(NodeError) as caught:
        run_grpo(tmp_path / "run", steps=2, file=file)
    assert "of this step, and max_failed_share=0.01 allows 0" in str(caught.value)
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
    file.write_text(file.read_text().replace("return step, held_out(cfg, actor)", "return step"))
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
    text = text.replace("return step, held_out(cfg, actor)", "return step").replace(
        "tuple[Pipeline, Pipeline]", "Pipeline"
    )
    (tmp_path / "pipeline.py").write_text(text)
    command = [sys.executable, "-m", "dagrl.cli", "run", str(tmp_path / "pipeline.py"), "--steps", "1"]
    options = ["--set", f"data={tmp_path}/prompts.jsonl", "--set", "batch_size=4", "--out", str(tmp_path / "run")]
    done = subprocess.run([*command, *options], cwd=ROOT, capture_output=True, text=True, timeout=200)
    assert done.returncode == 0, done.stderr


#: Files that compile, whose function cannot be used all the same, and what is said of it.
UNUSABLE = {
    "missing import": ("import nothing_of_this_name\ndef score(completions): ...", "ModuleNotFoundError: No module"),
    "line": (
        "\n\nraise ValueError('no judge')\ndef score(completions): ...",
        "ValueError: no judge, at {file}:3: ",
    ),
    "broken import": ("import broken_helper\ndef score(completions): ...", "broken_helper.py, line 2"),
    "exits": ("import sys\nsys.exit(4)\ndef score(completions): ...", "SystemExit: 4"),
    "exits at once": ("import os\nos._exit(4)\ndef score(completions): ...", "its process exited with code 4 while"),
    "hangs": ("import time\ntime.sleep(1000)\ndef score(completions): ...", "loading it took longer than 1 seconds"),
    "no such name": ("from os.path import *", "has no `score` once it is imported"),
    "no function": ("score = 5", "has `int`, not a function, as `score`"),
    "hidden signature": (
        "def deco(function):\n    def wrapper(*args, **kwargs):\n        return function(*args, **kwargs)\n"
        "    return wrapper\n@deco\ndef score(completions): ...",
        "its signature is `(*args, **kwargs)`, which does not tell its shape; a decorator",
    ),
    "column behind a decorator": (
        "import functools\ndef deco(function):\n    return functools.wraps(function)(lambda **k: function(**k))\n"
        "@deco\ndef score(completions, solution): ...",
        "it requires `solution`, which a function of shape 'trl' is not given here; it can take `answer`, `answers`",
    ),
}


@pytest.mark.parametrize("name", UNUSABLE)
def test_a_function_that_cannot_be_loaded_ends_the_run_before_a_model_is(
    name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    code, message = UNUSABLE[name]
    file = pipeline_with(tmp_path, "my_rewards.py:score", ", load_time_limit=1.0")
    (tmp_path / "broken_helper.py").write_text("x = 1\ndef f(:\n")
    (tmp_path / "my_rewards.py").write_text(code)
    compile_pipelines(load_grpo(file).pipelines[:1])
    monkeypatch.setattr(LocalRuntime, "start", None)  # a run that gets as far fails in another way
    with pytest.raises(CompileError) as caught:
        run_grpo(tmp_path / "run", steps=1, file=file)
    assert message.format(file=tmp_path / "my_rewards.py") in str(caught.value)
    assert "`function` is 'my_rewards.py:score': " in str(caught.value)
    assert "edited.py:" in str(caught.value)
    assert not (tmp_path / "run").exists()


def test_planning_does_not_run_the_file(tmp_path: Path) -> None:
    file = pipeline_with(tmp_path, "my_rewards.py:score")
    mark = tmp_path / "mark"
    (tmp_path / "my_rewards.py").write_text(f"open({str(mark)!r}, 'w')\ndef score(completions, answer): ...")
    command = [sys.executable, "-m", "dagrl.cli", "plan", str(file)]
    assert subprocess.run(command, cwd=ROOT, capture_output=True, timeout=120).returncode == 0
    assert not mark.exists()


@pytest.mark.parametrize(
    ("code", "message"),
    [
        (
            "def score(completions, solution): ...",
            "it requires `solution`, which a function of shape 'trl'",
        ),
        ("if __name__ == '__main__':\n    def score(completions): ...", 'is defined under `if __name__ == "__main__"`'),
        ("def score(*args, **kwargs): ...", "its signature is `(*args, **kwargs)`, which does not tell its shape"),
        ("def score(completions:\n", "`my_rewards.py` line 1: "),
    ],
)
def test_what_reading_tells_is_a_compile_error(code: str, message: str, tmp_path: Path) -> None:
    file = pipeline_with(tmp_path, "my_rewards.py:score")
    (tmp_path / "my_rewards.py").write_text(code)
    with pytest.raises(CompileError) as caught:
        compile_pipelines(load_grpo(file).pipelines[:1])
    assert message in str(caught.value)


def test_the_command_ends_with_2_when_the_function_cannot_be_loaded(tmp_path: Path) -> None:
    file = pipeline_with(tmp_path, "my_rewards.py:score")
    (tmp_path / "my_rewards.py").write_text("import nothing_of_this_name\ndef score(completions): ...")
    command = [sys.executable, "-m", "dagrl.cli", "run", str(file), "--steps", "1", "--out", str(tmp_path / "run")]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, timeout=120)
    assert done.returncode == 2
    assert "No module named 'nothing_of_this_name'" in done.stderr
    assert "Traceback" not in done.stderr
    assert not (tmp_path / "run").exists()


def test_a_field_that_only_some_rows_have_is_none_in_the_others(tmp_path: Path) -> None:
    rows = [{"prompt": f"{a} {a + 1}", "answer": str(a)} | ({"level": a} if a == 331 else {}) for a in range(300, 332)]
    (tmp_path / "prompts.jsonl").write_text("\n".join(map(json.dumps, rows)))
    file = pipeline_with(tmp_path, "my_rewards.py:score")
    (tmp_path / "my_rewards.py").write_text(
        "def score(completions, level):\n    return [0.0 if one is None else 1.0 for one in level]\n"
    )
    run_grpo(tmp_path / "run", steps=4, file=file, data=tmp_path / "prompts.jsonl", evaluate=False)
    means = [line["reward/mean"] for line in metrics_lines(tmp_path / "run")]
    assert sorted(means) == [0.0, 0.0, 0.0, 0.125]
