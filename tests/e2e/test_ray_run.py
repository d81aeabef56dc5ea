"""The command on Ray with two workers: it goes on after kills, stops by signal, and leaves no process behind."""

import os
import re
import signal
import subprocess
import time
from collections.abc import Callable
from pathlib import Path

import psutil
import pytest
from killing import (
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
from support import metrics_lines

RAY = ("--executor", "ray", "--set", "workers=2")
OPS = ("prompts", "generate", "verify", "grpo_advantage", "ref_logprob", "update_policy")
#: Seconds until the driver has said what is wrong.
LIMIT = 10.0


@pytest.fixture(scope="module")
def data(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return forty_rows(tmp_path_factory.mktemp("data"))


@pytest.fixture
def nothing_left() -> Callable[[], None]:
    """Fails when a process that was not there before the test still is, after some seconds."""
    before = set(psutil.pids())

    def check() -> None:
        end = time.monotonic() + 20
        while (left := _of_ray(set(psutil.pids()) - before)) and time.monotonic() < end:
            time.sleep(0.2)
        assert not left

    return check


def _of_ray(pids: set[int]) -> list[str]:
    """What those processes are, as far as they belong to a run or its Ray."""
    found: list[str] = []
    for pid in pids:
        try:
            words = " ".join(psutil.Process(pid).cmdline())
        except psutil.Error:
            continue
        if re.search(r"ray::|raylet|gcs_server|dagrl", words):
            found.append(f"{pid} {words[:100]}")
    return found


def test_a_run_that_is_killed_in_an_update_goes_on_to_the_same_end(
    tmp_path: Path, data: Path, nothing_left: Callable[[], None]
) -> None:
    finish(command(data, tmp_path / "whole", 4, *RAY))
    assert kill_at(data, tmp_path / "killed", 4, [in_op("update_policy", 4)], *RAY) == 1
    assert_equal_runs(tmp_path / "whole", tmp_path / "killed")
    nothing_left()


@pytest.mark.long
@pytest.mark.timeout(1800)
def test_a_run_that_is_killed_everywhere_ends_as_one_that_was_not(
    tmp_path: Path, data: Path, nothing_left: Callable[[], None]
) -> None:
    steps = 20
    finish(command(data, tmp_path / "whole", steps, *RAY))
    moments = [begun, resumed, in_op("generate", 0, "eval")]
    moments += [in_op(op, 2 * number + 1) for number, op in enumerate(OPS)]
    moments += [after(13), saving(14), saving(16, "actor*"), saving(18, "random*"), saved(18), exporting]
    assert kill_at(data, tmp_path / "killed", steps, moments, *RAY) >= 12
    assert_equal_runs(tmp_path / "whole", tmp_path / "killed")
    lines = [(line["pipeline"], line["step"]) for line in metrics_lines(tmp_path / "killed")]
    assert len(set(lines)) == len(lines)
    nothing_left()


def test_ctrl_c_in_the_terminal_saves_and_leaves_nothing(
    tmp_path: Path, data: Path, nothing_left: Callable[[], None]
) -> None:
    """The whole process group gets the signal, as from a terminal."""
    out = tmp_path / "run"
    process = start(command(data, out, 10000, "--save-every", "0", *RAY), process_group=0)
    try:
        assert wait_for(process, out, after(2))
        os.killpg(process.pid, signal.SIGINT)
        _, errors = process.communicate(timeout=60)
    finally:
        process.kill()
    assert process.returncode == 130, errors
    first, last = errors.splitlines()
    assert first.startswith("Ctrl-C: this step is finished and saved first")
    assert last.startswith("stopped by Ctrl-C after step ")
    assert "--executor ray --set workers=2" in last or "--set workers=2" in last
    nothing_left()


def kill_a_worker_in(op: str, data: Path, out: Path) -> tuple[subprocess.Popen[str], str, float]:
    """Kill -9 one worker while that op of step 3 runs; the ended command, what it said, and how long that took."""
    process = start(command(data, out, 10000, "--save-every", "1", *RAY))
    try:
        assert wait_for(process, out, in_op(op, 3))
        workers = [
            child for child in psutil.Process(process.pid).children(recursive=True) if "RayNodeHost" in child.name()
        ]
        assert len(workers) == 2
        workers[1].kill()
        began = time.monotonic()
        _, errors = process.communicate(timeout=60)
    finally:
        process.kill()
    return process, errors, time.monotonic() - began


@pytest.mark.parametrize(
    "op", [pytest.param(op, marks=[] if op == "update_policy" else pytest.mark.long) for op in OPS]
)
def test_a_worker_that_is_killed_ends_the_run_which_says_how_to_go_on(
    op: str, tmp_path: Path, data: Path, nothing_left: Callable[[], None]
) -> None:
    process, errors, seconds = kill_a_worker_in(op, data, tmp_path / "run")
    assert process.returncode == 1, errors
    assert seconds < LIMIT
    assert re.search(r"WorkerLostError: the process of rank \d of worker group `main` \(node 127.0.0.1\)", errors)
    assert "killed by signal 9" in errors
    assert re.search(r"in (node|op) `\S+` .*of pipeline `(grpo|eval)`, step \d+", errors)
    assert re.search(r"saved after step \d+; go on with: dagrl run .* --resume auto", errors)
    nothing_left()
