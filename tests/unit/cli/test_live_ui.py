"""The live view of a made-up run, whose node does what nodes should not: the run goes on, the terminal is as before."""

import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest
from killing import ENVIRONMENT
from support import ROOT
from terminal import Terminal

SCRIPT = str(Path(__file__).parent / "made_up_run.py")
ENVIRONMENT_HERE = {**ENVIRONMENT, "PYTHONPATH": str(ROOT)}


def run(folder: Path, node: str, steps: int = 1000) -> Terminal:
    code = f"import os, sys, threading, time\n{node}\nover = step >= {steps}\ntime.sleep(0.05)\n"
    return Terminal([sys.executable, SCRIPT, str(folder / "run"), code], environment=ENVIRONMENT_HERE)


def assert_as_before(terminal: Terminal) -> None:
    assert terminal.attributes() == terminal.before
    assert not terminal.is_alternate
    assert terminal.has_cursor


def assert_done(terminal: Terminal, steps: int) -> None:
    assert terminal.wait(30) == 0, terminal.text
    assert_as_before(terminal)
    assert f"ended after {steps} steps" in terminal.text


@pytest.mark.parametrize("reader", ["input('your name? ')", "__import__('pdb').set_trace()"])
def test_code_that_reads_gets_the_terminal_and_its_question_is_shown(tmp_path: Path, reader: str) -> None:
    with run(tmp_path, f"if step == 3: {reader}", 5) as terminal:
        terminal.wait_for("your name?" if "input" in reader else "(Pdb)")
        assert "has left the terminal to the code that reads from it" in terminal.text
        assert_as_before(terminal)
        terminal.press("c\n")
        assert_done(terminal, 5)


def test_processes_that_read_take_no_keys_from_the_view(tmp_path: Path) -> None:
    node = "if step == 1: __import__('subprocess').Popen(['sh', '-c', 'cat > taken'], cwd=folder)"
    with run(tmp_path, node) as terminal:
        terminal.wait_for(lambda: terminal.is_alternate)
        for _ in range(4):
            terminal.press("s")
            terminal.read(0.1)
        terminal.press("q")
        assert terminal.wait(30) == 0
    assert (tmp_path / "run/taken").read_text() == ""


@pytest.mark.parametrize(
    "node",
    [
        "os.close(1)",
        "sys.stderr = None",
        "sys.stderr.close()",
        "os.chdir('/')",
        "__import__('resource').setrlimit(1, (2000, 2000)); os.write(1, b'x' * 3000)",  # 1 is the size of a file
    ],
)
def test_a_node_that_spoils_the_console_does_not_end_the_run(tmp_path: Path, node: str) -> None:
    with run(tmp_path, f"if step == 3: {node}", 8) as terminal:
        assert_done(terminal, 8)


def test_a_console_that_cannot_be_in_the_run_folder_is_shown_at_the_end(tmp_path: Path) -> None:
    (tmp_path / "run/console.log").mkdir(parents=True)
    with run(tmp_path, "print('said in step', step)", 3) as terminal:
        assert_done(terminal, 3)
        assert "said in step 3" in terminal.text


def test_a_view_that_is_lost_in_a_thread_is_followed_by_lines(tmp_path: Path) -> None:
    """By a signal without a name."""
    node = f"""
if step == 3:
    import psutil
    from dagrl.executor.events import Warned
    psutil.Process().children()[0].send_signal({signal.SIGRTMIN + 5})
    time.sleep(0.3)
    thread = threading.Thread(target=emit, args=(Warned(time.time(), "from a thread"),))
    thread.start()
    thread.join()
"""
    with run(tmp_path, node, 5) as terminal:
        assert_done(terminal, 5)
        assert f"it was ended by signal {signal.SIGRTMIN + 5}" in "".join(terminal.lines)
        assert "Traceback" not in terminal.text


def test_a_run_whose_terminal_is_gone_goes_on_if_it_ignores_that(tmp_path: Path) -> None:
    node = "import signal; signal.signal(signal.SIGHUP, signal.SIG_IGN); (folder / 'step').write_text(str(step))"
    with run(tmp_path, node, 60) as terminal:
        terminal.wait_for(lambda: terminal.is_alternate)
        terminal.read(0.3)
        terminal.hang_up()
        assert terminal.process.wait(30) == 0
    assert (tmp_path / "run/step").read_text() == "60"
    assert "Traceback" not in (tmp_path / "run/console.log").read_text()


def test_p_twice_does_not_pause(tmp_path: Path) -> None:
    with run(tmp_path, "time.sleep(0.4 if step == 5 else 0.05); (folder / str(step)).touch()") as terminal:
        terminal.wait_for(lambda: terminal.is_alternate and (tmp_path / "run/4").exists())
        terminal.press("pp")
        terminal.wait_for(lambda: (tmp_path / "run/12").exists(), 10)
        terminal.press("p")
        terminal.wait_for("paused", 10)
        terminal.press("\x03")
        assert terminal.wait(30) == 0
        assert_as_before(terminal)


def test_keys_that_send_several_characters_are_one_key(tmp_path: Path) -> None:
    with run(tmp_path, "(folder / str(step)).touch()") as terminal:
        terminal.wait_for(lambda: terminal.is_alternate)
        terminal.press("\x1bq\x1b[<0;1;1M\x1b[24~")
        terminal.read(0.5)
        assert terminal.process.poll() is None
        terminal.press("q")
        assert terminal.wait(30) == 0


def test_no_more_than_ten_frames_a_second_however_many_keys_and_sizes(tmp_path: Path) -> None:
    with run(tmp_path, "") as terminal:
        terminal.wait_for(lambda: terminal.is_alternate)
        before, started = len(terminal.raw), time.monotonic()
        for number in range(100):
            terminal.press("s?")
            terminal.resize(1 + number % 90, 1 + number % 30)
            terminal.read(0.02)
        frames = terminal.raw[before:].count(b"\x1b[?2026h")
        assert 2 < frames <= 10 * (time.monotonic() - started) + 1
        terminal.resize(80, 24)
        terminal.wait_for("dagrl made-up", 10)
        terminal.press("q")
        assert terminal.wait(30) == 0


def test_a_run_that_is_refused_writes_nothing_into_the_folder_of_another(tmp_path: Path) -> None:
    code = """
from dagrl.cli.live import Live
from dagrl.storage.folder import Folder
from dagrl.tui.run_info import RunInfo
folder = Folder("memory://another")
folder.write("console.log", b"its own\\n")
live = Live(RunInfo(folder="memory://another"), print)
print("of this one")
live.close()
assert folder.read("console.log") == b"its own\\n", folder.read("console.log")
"""
    with Terminal([sys.executable, "-c", code], environment=ENVIRONMENT_HERE) as terminal:
        assert terminal.wait(30) == 0, terminal.text
        assert "of this one" in terminal.text


def test_what_stands_in_an_error_is_shown_and_not_obeyed(tmp_path: Path) -> None:
    (tmp_path / "bad.py").write_text("raise ValueError('\\x1b]0;title\\x07\\x1b[2J\\x9b31m')\n")
    line = [sys.executable, "-m", "dagrl.cli", "plan", str(tmp_path / "bad.py")]
    done = subprocess.run(line, capture_output=True, cwd=ROOT, env=ENVIRONMENT)
    assert done.returncode != 0
    assert b"]0;title" in done.stderr
    assert not set(done.stderr.decode()) & set("\x1b\x07\x9b")


def test_a_command_whose_streams_are_closed_or_unread_keeps_its_exit_code(tmp_path: Path) -> None:
    line = [sys.executable, "-m", "dagrl.cli", "view", str(tmp_path)]
    closed = subprocess.run(["sh", "-c", '"$@" <&- >&- 2>&-', "sh", *line], cwd=ROOT, env=ENVIRONMENT)
    assert closed.returncode == 2
    read, write = os.pipe()
    os.close(read)
    for words, code in ((line, 2), ([*line[:3], "nodes"], 0)):
        assert subprocess.run(words, cwd=ROOT, env=ENVIRONMENT, stdout=write, stderr=write).returncode == code
    os.close(write)
