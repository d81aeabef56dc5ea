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
    MARK,
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
from support import ROOT, edited_pipeline, metrics_lines

RAY = ("--executor", "ray", "--set", "workers=2")
OPS = ("prompts", "generate", "verify", "grpo_advantage", "ref_logprob", "update_policy")
#: Seconds until the driver has said what is wrong.
LIMIT = 10.0


@pytest.fixture(scope="module")
def data(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return forty_rows(tmp_path_factory.mktemp("data"))


@pytest.fixture
def nothing_left() -> Callable[[], None]:
    """Fails when a process that a command of this test has started still is there after some seconds."""

    def check() -> None:
        end = time.monotonic() + 20
        while (left := _marked()) and time.monotonic() < end:
            time.sleep(0.2)
        assert not left

    return check


def _marked() -> list[str]:
    """The processes that bear the mark of the commands that are started here."""
    name, value = MARK
    found: list[str] = []
    for process in psutil.process_iter():
        try:
            if process.environ().get(name) == value:
                found.append(f"{process.pid} {' '.join(process.cmdline())[:100]}")
        except psutil.Error:
            continue
    return found


@pytest.mark.long
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


@pytest.mark.long
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


def kill_a_worker_in(
    op: str, data: Path, out: Path, *more: str, file: str = "pipelines/grpo.py"
) -> tuple[subprocess.Popen[str], str, float]:
    """Kill -9 one worker while that op of step 3 runs; the ended command, what it said, and how long that took."""
    line = command(data, out, 10000, "--save-every", "1", *RAY, *more)
    line[line.index("pipelines/grpo.py")] = file
    process = start(line)
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


def assert_ended_by_a_killed_worker(process: subprocess.Popen[str], errors: str, seconds: float) -> None:
    assert process.returncode == 1, errors
    assert seconds < LIMIT
    assert re.search(r"WorkerLostError: the process of rank \d of worker group `main` \(node 127.0.0.1\)", errors)
    assert "killed by signal 9" in errors


@pytest.mark.long
@pytest.mark.parametrize("op", OPS)
def test_a_worker_that_is_killed_ends_the_run_which_says_how_to_go_on(
    op: str, tmp_path: Path, data: Path, nothing_left: Callable[[], None]
) -> None:
    process, errors, seconds = kill_a_worker_in(op, data, tmp_path / "run")
    assert_ended_by_a_killed_worker(process, errors, seconds)
    assert re.search(r"in (node|op) `\S+` .*of pipeline `(grpo|eval)`, step \d+", errors)
    assert re.search(r"saved after step \d+; go on with: dagrl run .* --resume auto", errors)
    nothing_left()


@pytest.mark.long
@pytest.mark.timeout(600)
@pytest.mark.parametrize("tensor_parallel", [1, 2])
def test_a_worker_that_is_killed_in_the_middle_of_vllms_generate_ends_the_run(
    tensor_parallel: int, tmp_path: Path, data: Path, nothing_left: Callable[[], None]
) -> None:
    """Where two processes share an engine the other one waits for the dead, and is ended with it."""
    pytest.importorskip("vllm")
    engine = f"rollout=vllm(kv_cache_gib=0.1, tensor_parallel={tensor_parallel})"
    edits = (("rollout=cfg.rollout", engine), ("from dagrl import", "from dagrl import vllm\nfrom dagrl import"))
    file = str(edited_pipeline(tmp_path, *edits))
    long = ("--set", "max_new_tokens=100")
    process, errors, seconds = kill_a_worker_in("generate", data, tmp_path / "run", *long, file=file)
    assert_ended_by_a_killed_worker(process, errors, seconds)
    assert re.search(r"in node `generate` .*of pipeline `grpo`, step 3", errors)
    assert re.search(r"saved after step 2; go on with: dagrl run .* --resume auto", errors)
    nothing_left()


STATEFUL = '''
from __future__ import annotations


@dataclass(frozen=True)
class Seen:
    """What the node has seen."""

    values: tuple[float, ...] = ()


@dataclass(frozen=True)
class Memory:
    """A state of the file's own classes, which no other process can import."""

    seen: Seen | None = None


@node(split="batch")
def remember(rewards: Float32[Tensor, " B"], *, state: Memory) -> tuple[Memory, Metrics]:
    """Keeps the mean reward of every step, and says how many there were."""
    before = state.seen.values if state.seen else ()
    print("remembered", len(before))
    return Memory(Seen((*before, float(rewards.mean())))), Metrics({"remembered": Sum(len(before) + 1.0)})

'''


@pytest.mark.long
def test_a_file_of_ones_own_with_state_runs_and_goes_on(tmp_path: Path, data: Path) -> None:
    """Its classes travel by value; annotations are strings there; what it prints is shown."""
    text = (ROOT / "pipelines/grpo.py").read_text()
    head, _, rest = text.partition("\n\n@dataclass(frozen=True, kw_only=True)")
    head = head.replace('"""\n', '"""\n\nfrom __future__ import annotations\n', 1)
    imports = "from jaxtyping import Float32\nfrom torch import Tensor\nfrom dagrl import Metrics, Sum, node\n"
    own = STATEFUL.replace("from __future__ import annotations\n", "")
    rest = rest.replace(
        "        advantages = advantage", "        remember(reward, state=Memory())\n        advantages = advantage", 1
    )
    file = tmp_path / "mine.py"
    file.write_text(head + "\n" + imports + own + "\n@dataclass(frozen=True, kw_only=True)" + rest)
    out = tmp_path / "run"
    for steps in (2, 3):
        line = command(data, out, steps, "--save-every", "1", "--resume", "auto", *RAY)
        line[line.index("pipelines/grpo.py")] = str(file)
        shown = finish(line)
    assert "[remember rank 0] remembered 2" in shown
    assert [one["remembered"] for one in metrics_lines(out) if one["pipeline"] == "grpo"] == [1, 2, 3]


DAEMON = '''
import os, time


def score(*, response_text, answers):
    """Leaves a daemon without any of its descriptors and variables, and takes its time."""
    if os.fork() == 0:
        os.setsid()
        if os.fork() == 0:
            os.closerange(0, 200)
            os.execve("/bin/sleep", ["sleep", "3597.25"], {})
        os._exit(0)
    time.sleep(8)
    return [1.0] * len(answers)
'''


@pytest.mark.long
def test_daemons_of_a_reward_function_end_with_a_run_that_is_killed(tmp_path: Path, data: Path) -> None:
    (tmp_path / "rewards.py").write_text(DAEMON)
    text = (ROOT / "pipelines/grpo.py").read_text().replace("    verify,\n", "    verify,\n    reward_function,\n")
    call = 'reward_function(batch, rollout, function="rewards.py:score", time_limit=60.0)'
    (tmp_path / "mine.py").write_text(text.replace("verify(batch, rollout)", call))
    line = command(data, tmp_path / "run", 3, *RAY)
    line[line.index("pipelines/grpo.py")] = str(tmp_path / "mine.py")
    process = start(line)
    try:
        assert wait_for(process, tmp_path / "run", lambda out: len(_daemons()) > 0)
    finally:
        process.kill()
        process.communicate()
    end = time.monotonic() + 20
    while _daemons() and time.monotonic() < end:
        time.sleep(0.2)
    assert not _daemons()


def _daemons() -> list[int]:
    return [p.pid for p in psutil.process_iter(["cmdline"]) if p.info["cmdline"] == ["sleep", "3597.25"]]
