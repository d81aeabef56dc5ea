"""Runs of the command that are stopped or killed at a moment that their run folder shows."""

import json
import os
import re
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path

from support import ROOT, metrics_lines

from dagrl.storage.checkpoints import MANIFEST

Moment = Callable[[Path], bool]
#: What the command and all that it starts bear in their environment, and nothing else on the machine does.
MARK = ("DAGRL_TEST_PROCESS", f"{os.getpid()}-{time.time_ns()}")
ENVIRONMENT = {**os.environ, "OMP_NUM_THREADS": "1", MARK[0]: MARK[1]}


def forty_rows(folder: Path) -> Path:
    """Forty rows to train on, five to evaluate on."""
    for name, numbers in (("train", range(100, 140)), ("test", range(200, 205))):
        rows = [json.dumps({"prompt": f"{number} {number + 1}", "answer": str(number + 1)}) for number in numbers]
        (folder / f"{name}.jsonl").write_text("\n".join(rows) + "\n")
    return folder


def command(data: Path, out: Path, steps: int, *more: str) -> list[str]:
    """A short run of the shipped pipeline."""
    values = {"data": data, "batch_size": 4, "n": 2, "precision": "fp32", "eval_every": 3}
    sets = [word for key, value in values.items() for word in ("--set", f"{key}={value}")]
    line = ["run", "pipelines/grpo.py", *sets, "--steps", str(steps), "--out", str(out), *more]
    return [sys.executable, "-m", "dagrl.cli", *line]


def start(line: list[str], process_group: int | None = None) -> subprocess.Popen[str]:
    """The command, started; ``process_group`` 0 makes it the leader of its own."""
    return subprocess.Popen(
        line,
        process_group=process_group,
        cwd=ROOT,
        env=ENVIRONMENT,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        preexec_fn=lambda: signal.signal(signal.SIGINT, signal.default_int_handler),
    )


def finish(line: list[str]) -> str:
    done = subprocess.run(line, cwd=ROOT, env=ENVIRONMENT, capture_output=True, text=True, timeout=200)
    assert done.returncode == 0, done.stderr
    return done.stdout


def wait_for(process: subprocess.Popen[str], out: Path, moment: Moment) -> bool:
    """Whether the moment came; the process may be over before it was seen."""
    end = time.monotonic() + 100
    while process.poll() is None and time.monotonic() < end:
        if moment(out):
            return True
        time.sleep(0.001)
    assert process.poll() is not None, "the moment never came, and the run did not end"
    return False


def in_op(op: str, step: int, pipeline: str = "grpo") -> Moment:
    """The op of that step has begun; the files that lead there are read as little as that needs."""

    def came(out: Path) -> bool:
        newest = max((out / "events").glob("*.jsonl"), default=None)
        if newest is None:
            return False
        text = _read(newest)
        return re.search(rf'"OpStarted".*"pipeline": "{pipeline}", "step": {step}, "op": "{op}"', text) is not None

    return came


def after(step: int) -> Moment:
    """The step is in the metrics."""
    return lambda out: any(
        f'"pipeline": "grpo", "step": {step},' in _read(file) for file in (out / "metrics").glob("*.jsonl")
    )


def _read(file: Path) -> str:
    """Its text; a run that goes on may just have taken the file away, as it is past its checkpoint."""
    try:
        return file.read_text()
    except FileNotFoundError:
        return ""


def saving(step: int, part: str = "") -> Moment:
    """The checkpoint is begun, or that part of it; it may be complete by the time the signal comes."""
    return lambda out: any(out.glob(f"checkpoints/step_{step:06d}/{part}"))


def saved(step: int) -> Moment:
    return lambda out: (out / f"checkpoints/step_{step:06d}/{MANIFEST}").exists()


def exporting(out: Path) -> bool:
    return any(out.glob(".model.*"))


def begun(out: Path) -> bool:
    return (out / "config.json").exists()


def resumed(out: Path) -> bool:
    """A run has taken the folder: there is a lock of a living process."""
    return (out / "lock.json").exists()


def assert_equal_runs(left: Path, right: Path) -> None:
    assert metrics_lines(left) == metrics_lines(right)
    name = "model/model.safetensors"
    assert (left / name).read_bytes() == (right / name).read_bytes()


def kill_at(data: Path, out: Path, steps: int, moments: list[Moment], *more: str) -> int:
    """Kill -9 the run at each moment, going on after each; how many kills found the run alive."""
    line = command(data, out, steps, "--save-every", "2", "--resume", "auto", *more)
    kills = 0
    for moment in moments:
        process = start(line)
        try:
            kills += wait_for(process, out, moment)
        finally:
            process.kill()
            process.communicate()
    finish(line)
    return kills
