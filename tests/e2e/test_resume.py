"""The command stopped by signals and killed at any moment: what it says, and that it goes on as if nothing had been."""

import shlex
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest
from killing import (
    ENVIRONMENT,
    after,
    assert_equal_runs,
    begun,
    command,
    exporting,
    finish,
    forty_rows,
    in_op,
    kill_at,
    resumed,
    saved,
    saving,
    start,
    wait_for,
)
from support import ROOT, event_lines, metrics_lines

from dagrl.storage.checkpoints import MANIFEST


@pytest.fixture(scope="module")
def data(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return forty_rows(tmp_path_factory.mktemp("data"))


@pytest.mark.long
def test_a_run_that_is_killed_twice_ends_as_one_that_was_not(tmp_path: Path, data: Path) -> None:
    finish(command(data, tmp_path / "whole", 4))
    moments = [in_op("update_policy", 3), saving(4)]
    assert kill_at(data, tmp_path / "killed", 4, moments) >= 1
    assert_equal_runs(tmp_path / "whole", tmp_path / "killed")


@pytest.mark.long
@pytest.mark.timeout(1200)
def test_a_run_that_is_killed_everywhere_ends_as_one_that_was_not(tmp_path: Path, data: Path) -> None:
    steps = 24
    finish(command(data, tmp_path / "whole", steps))
    ops = ("prompts", "generate", "verify", "grpo_advantage", "ref_logprob", "update_policy")
    moments = [begun, resumed, in_op("generate", 0, "eval")]
    moments += [in_op(op, 2 * number + 1) for number, op in enumerate(ops)]
    moments += [after(13), saving(14), saving(16, "actor*"), saving(18, "random*")]
    moments += [saved(20), in_op("verify", 21, "eval"), saving(24), exporting]
    assert kill_at(data, tmp_path / "killed", steps, moments) >= 12
    assert_equal_runs(tmp_path / "whole", tmp_path / "killed")
    lines = [(line["pipeline"], line["step"]) for line in metrics_lines(tmp_path / "killed")]
    assert len(set(lines)) == len(lines)


@pytest.mark.parametrize(("number", "code", "name"), [(signal.SIGINT, 130, "Ctrl-C"), (signal.SIGTERM, 143, "SIGTERM")])
def test_a_signal_lets_the_step_finish_saves_and_says_how_to_go_on(
    tmp_path: Path, data: Path, number: int, code: int, name: str
) -> None:
    out = tmp_path / "run"
    process = start(command(data, out, 10000, "--save-every", "0", "--seed", "3"))
    try:
        assert wait_for(process, out, after(2))
        process.send_signal(number)
        _, errors = process.communicate(timeout=60)
    finally:
        process.kill()
    assert process.returncode == code, errors
    step = max(line["step"] for line in metrics_lines(out))
    first, last = errors.splitlines()
    assert first.startswith(f"{name}: this step is finished and saved first")
    how, _, go_on = last.partition("; go on with: ")
    assert how == f"stopped by {name} after step {step}, saved as {out}/checkpoints/step_{step:06d}"
    assert event_lines(out)[-1]["outcome"] == "stopped"
    assert not (out / "lock.json").exists()
    words = shlex.split(go_on)
    assert words[:3] == ["dagrl", "run", "pipelines/grpo.py"]
    assert words[-4:] == ["--out", str(out), "--resume", "auto"]
    if number == signal.SIGINT:
        line = [sys.executable, "-m", "dagrl.cli", *words[1:], "--steps", str(step + 1), "--save-every", "1"]
        assert f"goes on after step {step}" in finish(line)
        assert [line["step"] for line in metrics_lines(out) if line["pipeline"] == "grpo"] == list(range(1, step + 2))
        assert f"nothing is left to do: {out} is done, with all its {step + 1} steps" in finish(line)


def test_a_second_signal_stops_at_once(tmp_path: Path, data: Path) -> None:
    (tmp_path / "slow.py").write_text(
        "import time\nfrom jaxtyping import Float32\nfrom torch import Tensor\nfrom dagrl import Metrics, node\n\n"
        '@node()\ndef slow(rewards: Float32[Tensor, " B"]) -> Metrics:\n'
        '    """Takes its time."""\n    time.sleep(100)\n    return Metrics()\n'
    )
    text = (ROOT / "pipelines/grpo.py").read_text()
    text = text.replace("        advantages = advantage", "        slow(reward)\n        advantages = advantage")
    (tmp_path / "mine.py").write_text("from slow import slow\n" + text)
    line = command(data, tmp_path / "run", 5)
    line[line.index("pipelines/grpo.py")] = str(tmp_path / "mine.py")
    process = start(line)
    try:
        assert wait_for(process, tmp_path / "run", in_op("slow", 1))
        process.send_signal(signal.SIGTERM)
        time.sleep(1.0)
        assert process.poll() is None
        process.send_signal(signal.SIGTERM)
        _, errors = process.communicate(timeout=20)
    finally:
        process.kill()
    assert process.returncode == 143, errors
    assert "stopped at once by SIGTERM, in the middle of a step; go on with: dagrl run" in errors
    assert "Traceback" not in errors
    assert event_lines(tmp_path / "run")[-1]["outcome"] == "stopped"


def test_a_folder_in_use_and_a_changed_setting_are_refused_in_seconds(tmp_path: Path, data: Path) -> None:
    out = tmp_path / "run"
    process = start(command(data, out, 10000, "--save-every", "1"))
    try:
        assert wait_for(process, out, saved(2))
        line = command(data, out, 10000, "--resume", "auto")
        done = subprocess.run(line, cwd=ROOT, env=ENVIRONMENT, capture_output=True, text=True, timeout=60)
        assert done.returncode == 2
        assert f"`{out}` is in use by process {process.pid} on " in done.stderr
        assert process.poll() is None
    finally:
        process.kill()
        process.communicate()
    newest = max((out / "checkpoints").glob(f"*/{MANIFEST}"))
    newest.write_text(newest.read_text()[:-9])
    line = command(data, out, 10000, "--resume", "auto", "--set", "lr=0.5", "--seed", "1")
    done = subprocess.run(line, cwd=ROOT, env=ENVIRONMENT, capture_output=True, text=True, timeout=60)
    assert done.returncode == 2
    assert f"the checkpoint `{newest.parent}` is passed over: `{MANIFEST}` is truncated or damaged" in done.stderr
    assert "ResumeError" in done.stderr
    assert "`lr` was `0.00025` and is `0.5`" in done.stderr
    assert "`seed` was `0` and is `1`" in done.stderr


def test_resume_needs_a_folder(tmp_path: Path) -> None:
    line = [sys.executable, "-m", "dagrl.cli", "run", "pipelines/grpo.py", "--resume", "auto"]
    done = subprocess.run(line, cwd=ROOT, env=ENVIRONMENT, capture_output=True, text=True, timeout=60)
    assert done.returncode == 2
    assert "needs `--out`" in done.stderr
