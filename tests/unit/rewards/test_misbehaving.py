"""Functions that do what a reward function should not: bounded time, the row named, the others scored."""

import subprocess
import sys
import textwrap
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import psutil
import pytest
import torch

from dagrl.errors import NodeError
from dagrl.nodes import reward_function

Write = Callable[..., str]
ROWS = [f"text {row}" for row in range(12)]
BAD = 7

#: What one row does, and what is said of it.
ON_A_ROW = {
    "raises": ("raise ValueError('no good')", "ValueError: no good"),
    "returns None": ("return None", "returned None"),
    "returns a str": ("return '1.0'", "returned the str '1.0', not a number"),
    "returns NaN": ("return float('nan')", "returned nan"),
    "returns inf": ("return float('inf')", "returned inf"),
    "returns a list": ("return [1.0, 2.0]", "returned a list"),
    "returns a tensor": ("return torch.ones(3)", "returned a Tensor, not one number"),
    "returns a dict without a score": ("return {'acc': 1.0}", "dict without `score`"),
    "hangs": ("import time\n    time.sleep(1000)", "took longer than time_limit=0.4 seconds"),
    "hangs in C": ("import re\n    re.match('(a|a)*b', 'a' * 60)", "took longer than time_limit=0.4 seconds"),
    "stops itself": ("import os\n    os.kill(os.getpid(), 19)", "took longer than time_limit=0.4 seconds"),
    "returns a nested score": ("return {'score': {'score': 1.0}}", "returned a dict, not a number"),
    "has a detail that raises": ("return {'score': 1.0, 'x': type('X', (), {'__repr__': lambda s: 1/0})()}",
                                 "ZeroDivisionError"),
    "an exception of its own kind": ("raise type('Stop', (BaseException,), {})('now')", "Stop: now"),
    "runs out of memory": ("bytearray(1 << 60)", "MemoryError"),
    "sys.exit": ("import sys\n    sys.exit(3)", "SystemExit: 3"),
    "os._exit": ("import os\n    os._exit(3)", "its process exited with code 3"),
    "os._exit(0)": ("import os\n    os._exit(0)", "its process exited with code 0"),
    "kills itself": ("import os\n    os.kill(os.getpid(), 9)", "its process was killed by SIGKILL"),
    "segfault": ("import ctypes\n    ctypes.string_at(0)", "its process was killed by SIGSEGV"),
    "signal.alarm": ("import signal, time\n    signal.setitimer(signal.ITIMER_REAL, .1)\n    time.sleep(9)",
                     "its process was killed by SIGALRM"),
    "becomes another program": ("import os\n    os.execv('/bin/true', ['true'])", "its process exited with code 0"),
    "unpicklable exception": ("raise type('Odd', (Exception,), {'__reduce__': lambda s: 1/0})('odd')", "Odd: odd"),
    "exception without text": ("raise type('Mute', (Exception,), {'__str__': lambda s: 1/0})", "cannot be shown"),
    "keyboard interrupt": ("raise KeyboardInterrupt", "KeyboardInterrupt"),
    "recursion": ("return score(data_source, solution_str, ground_truth)", "RecursionError"),
    "number that raises": ("return type('N', (), {'__float__': lambda s: 1/0})()", "ZeroDivisionError"),
    "closes its pipes": ("import os\n    os.closerange(3, 4096)\n    os._exit(5)", "its process exited with code 5"),
}  # fmt: skip
#: What a row may do without being worse for it.
HARMLESS = {
    "prints megabytes": "print('x' * 5_000_000)\n    import os\n    os.write(1, b'y' * 5_000_000)",
    "reads input": "import sys\n    assert sys.stdin is None or sys.stdin.read() == ''",
    "closes its output": "import sys\n    sys.stdout.close()",
    "leaves an alarm": "import signal\n    signal.setitimer(signal.ITIMER_REAL, .05)",
    "forks and returns twice": "import os\n    os.fork()",
    "forks and raises in the copy": "import os\n    if os.fork() == 0: raise RuntimeError",
    "ignores SIGTERM": "import signal\n    signal.signal(signal.SIGTERM, signal.SIG_IGN)",
    "an alarm of its own": """import signal, time
    def ring(*_): raise TimeoutError
    signal.signal(signal.SIGALRM, ring)
    signal.setitimer(signal.ITIMER_REAL, .05)
    try:
        time.sleep(5)
    except TimeoutError:
        pass""",
    "returns a bool": "return True",
    "returns a numpy scalar": "import numpy\n    return numpy.float32(1)",
    "returns a tensor of no dimension": "return torch.tensor(1.0)",
    "takes a gigabyte": "bytearray(1 << 30)",
    "leaves a thread": "import threading, time\n    threading.Thread(target=time.sleep, args=(1000,)).start()",
    "leaves a busy thread that prints": """import threading
    def go():
        while True: print("still here")
    threading.Thread(target=go, daemon=True).start()""",
    "an alarm through libc": "import ctypes\n    ctypes.CDLL(None).alarm(1)\n    ctypes.CDLL(None).alarm(0)",
    "forks through libc": "import ctypes\n    ctypes.CDLL(None).fork()",
    "returns objects in its dict": "return {'score': 1.0, 'how': lambda: 1, 'nested': {'a': [object()]}}",
}


def row_file(body: str) -> str:
    needs_torch = "import torch\n" if "torch." in body else "\n"
    return needs_torch + textwrap.dedent(
        """\
        def score(data_source, solution_str, ground_truth, extra_info=None):
            if solution_str == "text 7":
                BODY
            return 1.0
        """
    ).replace("BODY", body.replace("\n", "\n    "))


def list_file(body: str) -> str:
    return row_file(body).replace("score(", "one(") + (
        "def score(*, response_text):\n    return [one('', text, '') for text in response_text]\n"
    )


def call(path: str, **options: Any) -> tuple[torch.Tensor, Any, Any]:
    rows = options.pop("rows", ROWS)
    chats = [[{"role": "user", "content": "?"}] for _ in rows]
    chosen = {"time_limit": 0.4, "processes": 2, "max_failed_share": 0.5, **options}
    columns, metrics = reward_function(chats, rows, [""] * len(rows), ["d"] * len(rows), function=path, **chosen)
    return columns.rewards, columns.reward_details, metrics


@pytest.mark.parametrize("build", [row_file, list_file], ids=["one row", "lists"])
@pytest.mark.parametrize("name", ON_A_ROW)
def test_the_row_is_named_and_the_others_are_scored(
    name: str, build: Callable[[str], str], write: Write, caplog: pytest.LogCaptureFixture
) -> None:
    body, message = ON_A_ROW[name]
    started = time.monotonic()
    limit = 0.4 if "time_limit" in message else 10.0  # what ends by itself may be slow on a busy machine
    rewards, _, metrics = call(f"{write(build(body))}:score", time_limit=limit)
    assert time.monotonic() - started < 60
    assert torch.isnan(rewards).nonzero().flatten().tolist() == [BAD]
    assert rewards.nansum() == len(ROWS) - 1
    assert metrics["reward/failed_rows"].value == 1
    assert metrics["reward/declined_rows"].value == 0
    assert f"row {BAD}: " in caplog.text
    assert message in caplog.text
    assert "response 'text 7'" in caplog.text


@pytest.mark.parametrize("build", [row_file, list_file], ids=["one row", "lists"])
@pytest.mark.parametrize("name", HARMLESS)
def test_what_harms_nobody_is_scored(
    name: str, build: Callable[[str], str], write: Write, capfd: pytest.CaptureFixture[str]
) -> None:
    rewards, _, metrics = call(f"{write(build(HARMLESS[name]))}:score", time_limit=10.0)
    assert rewards.tolist() == [1.0] * len(ROWS)
    assert metrics["reward/failed_rows"].value == 0
    assert capfd.readouterr() == ("", "")


def test_what_is_printed_goes_to_the_log(
    write: Write, caplog: pytest.LogCaptureFixture, capfd: pytest.CaptureFixture[str]
) -> None:
    path = write("import sys\ndef score(*, response_text):\n    print('seen', file=sys.stderr)\n"
                 "    return [1.0] * len(response_text)\n")  # fmt: skip
    with caplog.at_level("INFO"):
        call(f"{path}:score")
    assert f"reward function `{path}:score` printed: seen" in caplog.text
    assert capfd.readouterr() == ("", "")


def test_dicts_may_differ_from_row_to_row(write: Write) -> None:
    code = """
        def score(data_source, solution_str, ground_truth, extra_info=None):
            if solution_str == "text 7":
                return {"score": 1, "acc": True, "pred": "7", "n": 10**400, "far": float("inf"), "in": {"a": [1]}}
            return {"score": 0, "acc": 0}
    """
    _, details, metrics = call(f"{write(textwrap.dedent(code))}:score")
    assert details[0] == {"score": 0, "acc": 0}
    assert details[BAD]["pred"] == "7"
    assert details[BAD]["in"] == {"a": [1]}
    assert metrics["reward/score/acc"].value == 1 / 12
    assert not {"reward/score/pred", "reward/score/n", "reward/score/far", "reward/score/in"} & set(metrics)


def test_an_alarm_that_a_row_leaves_does_not_ring_in_the_next(write: Write) -> None:
    code = """
        import signal, time
        def ring(*_): raise TimeoutError
        def score(data_source, solution_str, ground_truth, extra_info=None):
            time.sleep(0.002 if solution_str == "text 8" else 0)
            if solution_str == "text 7":
                signal.signal(signal.SIGALRM, ring)
                signal.setitimer(signal.ITIMER_REAL, 0.001)
            return 1.0
    """
    path = write(textwrap.dedent(code))
    for _ in range(2):  # the second time both rows are in one call
        rewards, _, _ = call(f"{path}:score", time_limit=10.0, processes=1)
        assert rewards.tolist() == [1.0] * len(ROWS)


def test_a_copy_that_a_row_forks_does_not_run_on(write: Write, tmp_path: Path) -> None:
    seen = tmp_path / "seen"
    code = f"""
        import os
        def score(data_source, solution_str, ground_truth, extra_info=None):
            with open({str(seen)!r}, "a") as file:
                file.write(f"{{solution_str}},")
            if solution_str == "text 7":
                os.fork()
            return 1.0
    """
    path = write(textwrap.dedent(code))
    for _ in range(2):  # the second time all rows are in one call
        seen.write_text("")
        rewards, _, _ = call(f"{path}:score", time_limit=10.0, processes=1)
        assert rewards.tolist() == [1.0] * len(ROWS)
    assert seen.read_text().split(",")[:-1] == ROWS


def test_the_line_in_the_users_file_and_what_was_printed_are_told(
    write: Write, caplog: pytest.LogCaptureFixture
) -> None:
    path = write(row_file("print('so far')\n    return 1 / 0"))
    call(f"{path}:score")
    assert f"{path}:5: return 1 / 0" in caplog.text
    assert "so far" in caplog.text


LISTS = {
    "always one result": ("return [1.0]", 0),
    "leaves rows out": ("return [1.0 for text in response_text if text != 'text 7']", 1),
    "one result too many": ("return [1.0] * (len(response_text) + 1)", 12),
    "no list": ("return 1.0", 12),
    "nothing": ("pass", 12),
    "text": ("return 'x' * len(response_text)", 12),
    "a dict": ("return dict.fromkeys(response_text, 1.0)", 12),
    "one None": ("return [None if text == 'text 7' else 1.0 for text in response_text]", 1),
}


@pytest.mark.parametrize("name", LISTS)
def test_lists_of_another_length_or_kind(name: str, write: Write, caplog: pytest.LogCaptureFixture) -> None:
    body, failed = LISTS[name]
    path = write(f"def score(*, response_text):\n    {body}")
    rewards, _, metrics = call(f"{path}:score", max_failed_share=1.0)
    assert metrics["reward/failed_rows"].value == failed
    assert torch.isnan(rewards).sum() == failed
    if name == "always one result":
        assert "called again on fewer" in caplog.text


def test_every_row_may_hang_and_the_step_still_ends_soon(write: Write) -> None:
    path = write("import time\ndef score(*, response_text):\n    time.sleep(1000)")
    started = time.monotonic()
    first = r"failed on (\d) of the first \1 rows to be scored of the 12 of this step"
    with pytest.raises(NodeError, match=first + r", and max_failed_share=0\.1 allows 1; the rest was not scored"):
        call(f"{path}:score", max_failed_share=0.1, time_limit=0.3)
    assert time.monotonic() - started < 60


def test_too_many_failures_end_the_run_with_three_samples(write: Write) -> None:
    path = write("def score(*, response_text):\n    raise KeyError('solution')")
    with pytest.raises(NodeError) as caught:
        call(f"{path}:score", max_failed_share=0.1)
    text = str(caught.value)
    assert f"`{path}:score` failed on" in text
    assert text.count("KeyError: 'solution'") == 3
    assert text.count(f"{path}:2: raise KeyError('solution')") == 3


def test_the_share_itself_is_still_allowed(write: Write) -> None:
    path = write(row_file("raise ValueError"))
    assert call(f"{path}:score", max_failed_share=1 / 12)[2]["reward/failed_rows"].value == 1
    with pytest.raises(NodeError):
        call(f"{path}:score", max_failed_share=0.08)


@pytest.mark.parametrize(
    ("code", "message"),
    [
        ("import nothing_of_this_name\ndef score(*, response_text): ...", "ModuleNotFoundError"),
        ("import sys\nsys.exit(2)\ndef score(*, response_text): ...", "SystemExit: 2"),
        ("import os\nos._exit(2)\ndef score(*, response_text): ...", "its process exited with code 2 while loading"),
        ("import time\ntime.sleep(1000)\ndef score(*, response_text): ...", "longer than 1 seconds"),
        ("score = 5", "has `int`, not a function, as `score`"),
        ("score = lambda x: x", "fit no shape"),
    ],
)
def test_a_function_that_cannot_be_loaded_is_one_error(code: str, message: str, write: Write) -> None:
    with pytest.raises(NodeError, match=message):
        call(f"{write(code)}:score", load_time_limit=1.0)


def test_async_functions_run_together_and_are_limited_alone(write: Write) -> None:
    code = """
        import asyncio
        async def score(data_source, solution_str, ground_truth, extra_info=None):
            await asyncio.sleep(1000 if solution_str == "text 7" else 0.2)
            return {"score": 1, "acc": 0.5}
        async def listed(prompts, completions, **kwargs):
            await asyncio.sleep(0.01)
            return [None if one[0]["content"] == "text 7" else 1.0 for one in completions]
        async def blocks(data_source, solution_str, ground_truth, extra_info=None):
            import time
            time.sleep(1000 if solution_str == "text 7" else 0)
            return 1.0
    """
    path = write(textwrap.dedent(code))
    started = time.monotonic()
    many = [f"text {number}" for number in range(200)]
    rewards, details, metrics = call(f"{path}:score", rows=many, time_limit=2.0)
    assert time.monotonic() - started < 15  # one after another they take two processes 20 seconds
    assert torch.isnan(rewards).nonzero().flatten().tolist() == [BAD]
    assert details[0] == {"score": 1, "acc": 0.5}
    assert details[BAD] is None
    assert metrics["reward/score/acc"].value == 0.5
    assert "reward/score/score" not in metrics
    rewards, _, metrics = call(f"{path}:listed")
    assert torch.isnan(rewards).nonzero().flatten().tolist() == [BAD]
    assert metrics["reward/failed_rows"].value == 0
    assert metrics["reward/declined_rows"].value == 1
    rewards, _, metrics = call(f"{path}:blocks")
    assert torch.isnan(rewards).nonzero().flatten().tolist() == [BAD]
    assert metrics["reward/failed_rows"].value == 1


def test_rows_run_in_parallel_and_no_row_waits_for_another(write: Write) -> None:
    path = write("import time\ndef score(*, response_text):\n    time.sleep(len(response_text))\n"
                 "    return [1.0] * len(response_text)\n")  # fmt: skip
    started = time.monotonic()
    rewards, _, _ = call(f"{path}:score", processes=4, time_limit=30.0)
    assert rewards.tolist() == [1.0] * 12
    assert time.monotonic() - started < 10  # one after another they take 12


def test_a_row_whose_process_dies_once_is_tried_again_alone(write: Write, tmp_path: Path) -> None:
    mark = str(tmp_path / "mark")
    body = f"import os\n    if not os.path.exists({mark!r}):\n        open({mark!r}, 'w').close()\n        os._exit(1)"
    rewards, _, _ = call(f"{write(row_file(body))}:score")
    assert rewards.tolist() == [1.0] * len(ROWS)


def test_a_slow_row_among_quick_ones_has_its_whole_limit(write: Write) -> None:
    path = write("import time\ndef score(*, response_text):\n    time.sleep(1.4 * ('text 7' in response_text))\n"
                 "    return [1.0] * len(response_text)\n")  # fmt: skip
    rewards, _, _ = call(f"{path}:score", time_limit=5.0)
    assert rewards.tolist() == [1.0] * 12


def test_what_a_killed_row_started_is_gone(write: Write, tmp_path: Path) -> None:
    body = f"import subprocess\n    p = subprocess.Popen(['sleep', '991'])\n    open({str(tmp_path / 'pid')!r}, 'w')" \
           ".write(str(p.pid))\n    p.wait()"  # fmt: skip
    call(f"{write(row_file(body))}:score")
    pid = int((tmp_path / "pid").read_text())
    assert not psutil.pid_exists(pid) or psutil.Process(pid).status() == psutil.STATUS_ZOMBIE


def test_a_row_that_cannot_be_sent_fails_alone(write: Write) -> None:
    path = write("def score(*, response_text, row_fields):\n    return [1.0] * len(response_text)")
    chats = [[] for _ in ROWS]
    fields: list[Any] = [{"f": (lambda: 0) if row == BAD else 0} for row in range(len(ROWS))]
    columns, _ = reward_function(
        chats, ROWS, row_fields=fields, function=f"{path}:score", processes=2, max_failed_share=1.0
    )
    assert torch.isnan(columns.rewards).nonzero().flatten().tolist() == [BAD]


def test_no_rows_start_no_process() -> None:
    rewards, details, metrics = call("dagrl.rewards.example:same_text", rows=[])
    assert rewards.shape == (0,)
    assert len(details) == 0
    assert metrics["reward/failed_rows"].value == 0


def test_children_load_no_torch_and_run_the_main_script_not_again(write: Write, tmp_path: Path) -> None:
    path = write(
        "import sys\ndef score(*, response_text):\n    return [float('torch' in sys.modules)] * len(response_text)"
    )
    script = tmp_path / "script.py"
    script.write_text(
        "print('main runs')\n"
        "from dagrl.nodes import reward_function\n"
        f"print(reward_function([[], []], ['a', 'b'], function={f'{path}:score'!r}, processes=1)[0].rewards.tolist())\n"
    )
    done = subprocess.run([sys.executable, script], capture_output=True, text=True, timeout=60)
    assert done.returncode == 0, done.stderr
    assert done.stdout.splitlines() == ["main runs", "[0.0, 0.0]"]


def _runs(pid: int) -> bool:
    try:
        return psutil.Process(pid).status() != psutil.STATUS_ZOMBIE
    except psutil.NoSuchProcess:
        return False


@pytest.mark.parametrize("victim", ["keeper", "fork server"])
def test_a_parent_that_a_row_kills_is_replaced(victim: str, write: Write, tmp_path: Path) -> None:
    find = "os.getppid()" if victim == "keeper" else "psutil.Process(os.getppid()).ppid()"
    pids = tmp_path / "pids"
    note = f"open({str(pids)!r}, 'a').write(f'{{os.getpid()}} ')"
    path = write(row_file(f"import os, psutil, time\n    {note}\n    os.kill({find}, 9)\n    time.sleep(1000)"))
    rewards, _, metrics = call(f"{path}:score")
    deadline = time.monotonic() + 5
    while any(_runs(int(pid)) for pid in pids.read_text().split()) and time.monotonic() < deadline:
        time.sleep(0.02)
    assert not any(_runs(int(pid)) for pid in pids.read_text().split())
    assert metrics["reward/failed_rows"].value == 1
    assert torch.isnan(rewards[BAD])
    assert rewards.nansum() == len(ROWS) - 1


@pytest.mark.parametrize(
    ("body", "message"),
    [
        ("raise SystemExit(0)", "SystemExit"),
        ("raise KeyboardInterrupt", "KeyboardInterrupt"),
        ("raise TimeoutError('the judge is down')", "TimeoutError: the judge is down"),
    ],
)
def test_an_async_row_that_exits_or_times_out_by_itself_costs_its_row(
    body: str, message: str, write: Write, caplog: pytest.LogCaptureFixture
) -> None:
    rewards, _, metrics = call(f"{write(row_file(body).replace('def score', 'async def score'))}:score")
    assert rewards.isnan().nonzero().tolist() == [[BAD]]
    assert metrics["reward/failed_rows"].value == 1
    assert message in caplog.text
