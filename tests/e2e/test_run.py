"""The command as a user runs it: without ray, stopped by Ctrl-C, failing, and the model it leaves."""

import json
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest
import torch
from support import ROOT, event_lines, metrics_lines, run_grpo
from transformers import AutoModelForCausalLM, AutoTokenizer

COMMAND = [sys.executable, "-m", "dagrl.cli", "run", "pipelines/grpo.py", "--set", "batch_size=4"]


def test_the_demo_runs_where_ray_cannot_be_imported(tmp_path: Path) -> None:
    script = (
        "import sys\nsys.modules['ray'] = None\nfrom dagrl.cli.main import main\n"
        "sys.argv = ['dagrl', 'run', 'pipelines/grpo.py', '--steps', '2', '--set', 'batch_size=4', "
        f"'--out', '{tmp_path}/run']\n"
        "main()"
    )
    done = subprocess.run([sys.executable, "-c", script], cwd=ROOT, capture_output=True, text=True, timeout=200)
    assert done.returncode == 0, done.stderr
    assert done.stdout.splitlines()[-1].startswith("done:")
    assert "Traceback" not in done.stderr


def test_ctrl_c_stops_with_130_and_keeps_whole_lines(tmp_path: Path) -> None:
    process = subprocess.Popen(
        [*COMMAND, "--steps", "10000", "--out", str(tmp_path / "run")],
        cwd=ROOT, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True,
        preexec_fn=lambda: signal.signal(signal.SIGINT, signal.default_int_handler),
    )  # fmt: skip
    try:
        assert process.stdout is not None
        line = process.stdout.readline()
        while line and not line.startswith("step 3/"):
            line = process.stdout.readline()
        process.send_signal(signal.SIGINT)
        started = time.monotonic()
        _, errors = process.communicate(timeout=60)
    finally:
        process.kill()
    assert process.returncode == 130, errors
    assert time.monotonic() - started < 30
    assert "Traceback" not in errors
    assert str(tmp_path / "run") in errors
    steps = [line["step"] for line in metrics_lines(tmp_path / "run") if line["pipeline"] == "grpo"]
    assert steps == list(range(1, len(steps) + 1))
    assert len(steps) >= 3
    events = event_lines(tmp_path / "run")
    assert events[-1]["event"] == "RunFinished"
    assert events[-1]["outcome"] == "stopped"
    assert events[-1]["steps_done"] == len(steps)


def test_a_failing_node_shows_its_traceback_and_exits_1(tmp_path: Path) -> None:
    pipeline = (ROOT / "pipelines/grpo.py").read_text()
    (tmp_path / "broken_reward.py").write_text(
        "from jaxtyping import Float32\nfrom torch import Tensor\nfrom dagrl import Objects, node\n\n"
        '@node(writes="rewards")\ndef broken(response_text: Objects[str]) -> Float32[Tensor, " B"]:\n'
        '    """Fails."""\n    raise RuntimeError("the judge is out")\n'
    )
    changed = pipeline.replace("reward = verify(batch, rollout)", "reward = broken(rollout)")
    (tmp_path / "mine.py").write_text("from broken_reward import broken\n" + changed)
    command = [sys.executable, "-m", "dagrl.cli", "run", str(tmp_path / "mine.py"), "--out", str(tmp_path / "run")]
    done = subprocess.run([*command, "--set", "batch_size=4"], cwd=ROOT, capture_output=True, text=True, timeout=200)
    assert done.returncode == 1
    assert "RuntimeError: the judge is out" in done.stderr
    assert "broken_reward.py" in done.stderr
    assert "in node `broken`" in done.stderr
    assert "step 1" in done.stderr
    events = event_lines(tmp_path / "run")
    assert events[-1]["outcome"] == "failed"


def test_the_final_model_loads_in_transformers_and_answers_as_evaluated(tmp_path: Path) -> None:
    from dagrl.zoo import open_task

    result = run_grpo(tmp_path / "run", steps=2, evaluate=True)
    folder = tmp_path / "run/model"
    model = AutoModelForCausalLM.from_pretrained(folder)
    tokenizer = AutoTokenizer.from_pretrained(folder)
    assert model.dtype == torch.bfloat16
    rows = open_task("larger", "test")[:256]
    chats = [[{"role": "user", "content": row.prompt}] for row in rows]
    tokenizer.padding_side = "left"
    inputs = tokenizer.apply_chat_template(
        chats, add_generation_prompt=True, tokenize=True, padding=True, return_tensors="pt", return_dict=True
    )
    outputs = model.generate(**inputs, max_new_tokens=8, do_sample=False)
    texts = tokenizer.batch_decode(outputs[:, inputs["input_ids"].shape[1] :], skip_special_tokens=True)
    accuracy = sum(text == row.answer for text, row in zip(texts, rows, strict=True)) / len(rows)
    evaluated = [record for record in result.records if record.pipeline == "eval"][-1].metrics["reward/mean"]
    assert accuracy == pytest.approx(evaluated, abs=0.08)


def test_the_run_folder_says_what_was_asked_for_and_planned(tmp_path: Path) -> None:
    command = [*COMMAND, "--steps", "1", "--seed", "5", "--out", str(tmp_path / "run")]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, timeout=200)
    assert done.returncode == 0, done.stderr
    config = json.loads((tmp_path / "run/config.json").read_text())
    assert (config["seed"], config["steps"], config["executor"]) == (5, 1, "local")
    assert config["config"]["batch_size"] == 4
    plans = json.loads((tmp_path / "run/plan.json").read_text())
    assert [plan["pipeline"] for plan in plans] == ["grpo", "eval"]
    lines = metrics_lines(tmp_path / "run")
    assert [(line["pipeline"], line["step"]) for line in lines] == [("eval", 0), ("grpo", 1), ("eval", 1)]


def test_a_second_run_into_the_same_folder_is_refused_and_harms_nothing(tmp_path: Path) -> None:
    command = [*COMMAND, "--steps", "1", "--out", str(tmp_path / "run")]
    assert subprocess.run(command, cwd=ROOT, capture_output=True, timeout=200).returncode == 0
    before = (tmp_path / "run/metrics/000000.jsonl").read_bytes()
    again = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, timeout=200)
    assert again.returncode == 2
    assert "exists and is not empty" in again.stderr
    assert (tmp_path / "run/metrics/000000.jsonl").read_bytes() == before


def test_a_reader_that_goes_away_does_not_stop_the_run(tmp_path: Path) -> None:
    command = [*COMMAND, "--steps", "3", "--out", str(tmp_path / "run")]
    process = subprocess.Popen(command, cwd=ROOT, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)
    assert process.stdout is not None
    assert process.stdout.readline().startswith("grpo: 3 steps, seed 0, run folder")
    process.stdout.close()
    assert process.wait(timeout=120) == 0
    assert [line["step"] for line in metrics_lines(tmp_path / "run") if line["pipeline"] == "grpo"] == [1, 2, 3]


@pytest.mark.parametrize("where", ["in the file", "in build"])
def test_sys_exit_in_the_users_file_is_a_mistake_not_a_success(tmp_path: Path, where: str) -> None:
    text = (ROOT / "pipelines/grpo.py").read_text()
    end = "import sys\nsys.exit()\n" if where == "in the file" else ""
    body = text.replace("    pool = ", "    raise SystemExit\n    pool = ") if where == "in build" else text
    (tmp_path / "quits.py").write_text("\ufeff" + body + end)
    command = [sys.executable, "-m", "dagrl.cli", "run", str(tmp_path / "quits.py"), "--out", str(tmp_path / "run")]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, timeout=100)
    assert done.returncode == 2
    assert "SystemExit" in done.stderr
    assert "quits.py:" in done.stderr
    assert not (tmp_path / "run").exists()


def test_a_contract_broken_at_run_time_is_one_message_without_our_traceback(tmp_path: Path) -> None:
    (tmp_path / "odd_reward.py").write_text(
        "from jaxtyping import Float32\nfrom torch import Tensor\nfrom dagrl import Objects, node\n\n"
        '@node(writes="rewards")\ndef odd(response_text: Objects[str]) -> Float32[Tensor, " B"]:\n'
        '    """Returns a list."""\n    return [0.0] * len(response_text)\n'
    )
    changed = (
        (ROOT / "pipelines/grpo.py").read_text().replace("reward = verify(batch, rollout)", "reward = odd(rollout)")
    )
    (tmp_path / "mine.py").write_text("from odd_reward import odd\n" + changed)
    command = [sys.executable, "-m", "dagrl.cli", "run", str(tmp_path / "mine.py"), "--out", str(tmp_path / "run")]
    done = subprocess.run([*command, "--set", "batch_size=4"], cwd=ROOT, capture_output=True, text=True, timeout=200)
    assert done.returncode == 1
    assert "NodeError: `odd` returned a list for `rewards`, declared f32[B]" in done.stderr
    assert "in node `odd`" in done.stderr
    assert "Traceback" not in done.stderr
