"""Whatever a reward function starts ends with its row, its process, the pool or the run, without a word."""

import os
import signal
import subprocess
import sys
import textwrap
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import psutil
import pytest

from dagrl.errors import NodeError
from dagrl.nodes import reward_function
from dagrl.rewards import pool
from dagrl.rewards.pool import close_pools

Write = Callable[..., str]
pytestmark = pytest.mark.skipif(sys.platform != "linux", reason="elsewhere what starts its own session is not found")

#: Ways to start a process that is in no group or session of the row's process, or no child of it.
STRAYS = {
    "own session": "subprocess.Popen(['sleep', '991'], start_new_session=True)",
    "orphan": "os.system('sleep 991 & echo > /dev/null')",
    "daemon": textwrap.dedent("""\
        if os.fork() == 0:
            os.setsid()
            if os.fork() == 0:
                os.execvp("sleep", ["sleep", "991"])
            os._exit(0)"""),
}
#: What the row does then, by which its process ends, or does not.
ENDS = {"hangs": "time.sleep(1000)", "exits": "os._exit(3)", "is killed": "os.kill(os.getpid(), 9)"}


def stray_file(start: str, end: str) -> str:
    return (
        "import os, subprocess, time\n"
        "def score(solution_str):\n"
        "    if solution_str == 'text 3':\n"
        f"{textwrap.indent(start, ' ' * 8)}\n"
        "        time.sleep(0.2)\n"
        f"        {end}\n"
        "    return 1.0\n"
    )


def call(path: str, num_rows: int = 6, time_limit: float = 1.0) -> list[float]:
    texts = [f"text {row}" for row in range(num_rows)]
    options: dict[str, Any] = {"processes": 2, "time_limit": time_limit, "max_failed_share": 0.9}
    columns, _ = reward_function(
        [[]] * num_rows, texts, [""] * num_rows, ["d"] * num_rows, function=f"{path}:score", **options
    )
    return columns.rewards.tolist()


def sleepers(folder: Path) -> list[int]:
    """The processes that rows of this test started: their working directory is the test's."""
    found: list[int] = []
    for process in psutil.process_iter():
        try:
            if process.name() == "sleep" and process.cwd() == str(folder):
                found.append(process.pid)
        except psutil.Error:
            continue
    return found


def wait_until(condition: Callable[[], bool], seconds: float = 20.0) -> bool:
    deadline = time.monotonic() + seconds
    while not condition() and time.monotonic() < deadline:
        time.sleep(0.02)
    return condition()


RUN = """
import sys
from dagrl.rewards.pool import open_pool
from dagrl.rewards.scoring import Limits, Scoring, load_function
reference, num_rows = sys.argv[1], int(sys.argv[2])
pool = open_pool(2)
source = pool.find(reference)
loaded = load_function(pool, source, 60.0)
print("loaded", flush=True)
Scoring(pool, source, "verl", loaded, {"response_text": ["text 3"] * num_rows}, Limits(100.0, 60.0, 1)).run()
"""


def start_run(path: str, folder: Path, num_rows: int = 1) -> "subprocess.Popen[str]":
    """A run of its own that scores rows, in a process group as a terminal gives one."""
    command = [sys.executable, "-c", RUN, f"{path}:score", str(num_rows)]
    return subprocess.Popen(
        command, cwd=folder, text=True, start_new_session=True, stdout=subprocess.PIPE, stderr=subprocess.PIPE
    )


def below(pid: int) -> list[psutil.Process]:
    return psutil.Process(pid).children(recursive=True)


def running(processes: list[psutil.Process]) -> list[psutil.Process]:
    return [one for one in processes if one.is_running() and one.status() != psutil.STATUS_ZOMBIE]


@pytest.mark.parametrize("end", ENDS)
@pytest.mark.parametrize("start", STRAYS)
def test_what_a_row_started_ends_with_its_process(
    start: str, end: str, write: Write, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    close_pools()
    rewards = call(write(stray_file(STRAYS[start], ENDS[end])))
    assert [row for row, reward in enumerate(rewards) if reward != 1.0] == [3]
    assert sleepers(tmp_path) == []


@pytest.mark.parametrize("start", STRAYS)
def test_what_a_row_leaves_running_ends_with_the_pool(
    start: str, write: Write, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    close_pools()
    before = set(running(below(os.getpid())))  # other tests' sessions
    assert call(write(stray_file(STRAYS[start], "pass"))) == [1.0] * 6
    assert len(sleepers(tmp_path)) == 1
    close_pools()
    assert sleepers(tmp_path) == []
    assert set(running(below(os.getpid()))) <= before


def test_what_another_process_started_is_left_alone(
    write: Write, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A row's end takes what its own process started, not the helper that a function keeps in another process."""
    monkeypatch.chdir(tmp_path)
    close_pools()
    mark = str(tmp_path / "mark")
    path = write(
        "import os, time\n"
        "def score(data_source, solution_str, ground_truth):\n"
        f"    if solution_str == 'text 0' and not os.path.exists({mark!r}):\n"
        f"        open({mark!r}, 'w').close()\n"
        "        os.system('sleep 991 & echo > /dev/null')\n"
        "        time.sleep(0.5)\n"
        "    if solution_str == 'text 5':\n"
        "        time.sleep(0.1)\n"
        "        os._exit(1)\n"
        "    return 1.0\n"
    )
    columns, _ = reward_function(
        [[]] * 2, ["text 0", "text 5"], ["", ""], ["d"] * 2, function=f"{path}:score", processes=2, max_failed_share=0.9
    )
    assert columns.rewards[0] == 1.0
    assert len(sleepers(tmp_path)) == 1
    close_pools()
    assert sleepers(tmp_path) == []


@pytest.mark.parametrize("number", [signal.SIGKILL, signal.SIGTERM])
@pytest.mark.parametrize("start", STRAYS)
def test_nothing_outlives_a_run_that_is_killed(start: str, number: int, write: Write, tmp_path: Path) -> None:
    process = start_run(write(stray_file(STRAYS[start], "time.sleep(1000)")), tmp_path)
    assert wait_until(lambda: len(sleepers(tmp_path)) == 1)
    left = below(process.pid)
    assert len(left) >= 3
    process.send_signal(number)
    said = process.communicate(timeout=20)[1]
    assert process.returncode == -number
    assert said == ""
    assert wait_until(lambda: sleepers(tmp_path) == [] and running(left) == [], 5)


def test_nothing_outlives_a_run_that_is_killed_after_its_fork_server(write: Write, tmp_path: Path) -> None:
    process = start_run(write(stray_file(STRAYS["daemon"], "time.sleep(1000)")), tmp_path)
    assert wait_until(lambda: len(sleepers(tmp_path)) == 1)
    left = below(process.pid)
    (server,) = psutil.Process(process.pid).children()
    server.kill()
    process.kill()
    process.communicate(timeout=20)
    assert wait_until(lambda: sleepers(tmp_path) == [] and running(left) == [], 5)


def test_nothing_outlives_a_killed_run_whose_rows_are_stuck_in_c(write: Write, tmp_path: Path) -> None:
    mark = str(tmp_path / "mark")
    path = write(
        f"import re\ndef score(solution_str):\n    open({mark!r}, 'a').write('x')\n    re.match('(a|a)*b', 'a' * 60)\n"
    )
    process = start_run(path, tmp_path, num_rows=2)
    assert wait_until(lambda: os.path.exists(mark) and os.path.getsize(mark) == 2)
    left = below(process.pid)
    process.kill()
    process.communicate(timeout=20)
    assert wait_until(lambda: running(left) == [], 5)


@pytest.mark.parametrize("seconds", [0.0, 0.02, 0.05, 0.1, 0.15, 0.2])
def test_ctrl_c_while_processes_start_shows_no_childs_traceback(seconds: float, write: Write, tmp_path: Path) -> None:
    path = write("import time\ndef score(solution_str):\n    time.sleep(1000)\n")
    process = start_run(path, tmp_path)
    assert wait_until(lambda: below(process.pid) != [])
    time.sleep(seconds)
    left = below(process.pid)
    os.killpg(process.pid, signal.SIGINT)
    said = process.communicate(timeout=20)[1]
    assert said.count("Traceback") == 1
    assert said.rstrip().endswith("KeyboardInterrupt")
    assert "rewards/server.py" not in said
    assert "leaked" not in said
    assert wait_until(lambda: running(left) == [], 5)  # a server that had only been started ends once it runs


def test_a_run_that_ends_leaves_nothing_and_says_nothing(write: Write, tmp_path: Path) -> None:
    path = write("def score(solution_str):\n    return 1.0\n")
    code = (
        f"{RUN}\nimport psutil\nfrom dagrl.rewards.pool import close_pools\n"
        "assert psutil.Process().children(recursive=True)\n"
        "close_pools()\n"
        "print(psutil.Process().children(recursive=True))\n"
    )
    command = [sys.executable, "-c", code, f"{path}:score", "8"]
    done = subprocess.run(command, capture_output=True, text=True, timeout=60)
    assert (done.returncode, done.stdout, done.stderr) == (0, "loaded\n[]\n", "")


def test_many_rows_that_end_their_process_cost_milliseconds_each(write: Write) -> None:
    path = write("import os\ndef score(data_source, solution_str, ground_truth):\n    os._exit(1)\n")
    started = time.monotonic()
    with pytest.raises(NodeError, match=r"failed on (3[6-9]|40) of the first"):
        reward_function(
            [[]] * 40, ["a"] * 40, [""] * 40, ["d"] * 40, function=f"{path}:score", processes=2, max_failed_share=0.9
        )
    assert time.monotonic() - started < 10


def test_a_process_that_does_not_read_cannot_block_the_run(write: Write, monkeypatch: pytest.MonkeyPatch) -> None:
    """Its next rows are larger than any pipe, and a thread that it left holds it stopped."""
    path = write(
        "import os, subprocess\n"
        "def score(data_source, solution_str, ground_truth):\n"
        "    if len(solution_str) == 1:\n"
        "        subprocess.Popen(['sh', '-c', f'sleep 0.05; kill -STOP {os.getpid()}'])\n"
        "    return 1.0\n"
    )
    reward_function([[]], ["warm"], [""], ["d"], function=f"{path}:score", processes=1)
    monkeypatch.setattr(pool, "_SILENT_SECONDS", 1.5)
    started = time.monotonic()
    for text in ("a", "b" * 20_000_000):
        columns, _ = reward_function([[]], [text], [""], ["d"], function=f"{path}:score", processes=1)
        assert columns.rewards.tolist() == [1.0]
        time.sleep(0.3)
    assert time.monotonic() - started < 15


def test_processes_that_do_not_start_are_one_error(write: Write, monkeypatch: pytest.MonkeyPatch) -> None:
    path = write("def score(*, response_text):\n    return [1.0] * len(response_text)\n")
    close_pools()
    monkeypatch.setattr(sys, "executable", "/bin/false")
    with pytest.raises(NodeError, match=r"reward processes ended as soon as they began|ends as soon as it begins"):
        call(path)
    close_pools()
