"""The live view on a real terminal: what it shows, how it ends, and that the terminal is always as it was before."""

import json
import os
import re
import shlex
import shutil
import subprocess
import sys
import time
from pathlib import Path

import pytest
from killing import ENVIRONMENT, after, command, forty_rows, start, wait_for
from support import ROOT, event_lines, metrics_lines
from terminal import Terminal

from dagrl.storage.folder import Folder

#: Says something by every way there is, and keeps the steps slow enough to be looked at.
NOISY = '''
import logging, os, subprocess, sys, time, warnings
from jaxtyping import Float32
from torch import Tensor
from dagrl import Metrics, node


@node()
def noisy(rewards: Float32[Tensor, " B"]) -> Metrics:
    """Makes noise."""
    print("said by print")
    os.write(1, b"said by write\\n")
    os.write(2, b"said on stderr \\x1b[31m\\x1b[2J\\x1b]0;title\\x07\\n")
    subprocess.run(["echo", "said by a child"])
    logging.getLogger("library").warning("logged by %s", "a library \\x1b[2J")
    warnings.warn("python warns")
    time.sleep(0.1)
    return Metrics()
'''
SAID = ("said by print", "said by write", "said on stderr", "said by a child", "logged by a library", "python warns")


@pytest.fixture(scope="module")
def data(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Rows, some of which would take over a terminal that interprets them."""
    folder = forty_rows(tmp_path_factory.mktemp("data"))
    rows = [json.loads(line) for line in (folder / "train.jsonl").read_text().splitlines()]
    for number, row in enumerate(rows):
        row["prompt"] = f"\x1b[2J\x1b[1;1H[red]{number}\u202e\x07 全角 {row['prompt']}"
    (folder / "train.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    return folder


def noisy_run(folder: Path, data: Path, steps: int, *more: str) -> list[str]:
    """The shipped pipeline with a node that writes to the console."""
    (folder / "noisy.py").write_text(NOISY)
    text = (ROOT / "pipelines/grpo.py").read_text()
    text = text.replace("        advantages = advantage", "        noisy(reward)\n        advantages = advantage")
    (folder / "mine.py").write_text("from noisy import noisy\n" + text)
    line = command(data, folder / "run", steps, *more)
    line[line.index("pipelines/grpo.py")] = str(folder / "mine.py")
    return line


def step_of(terminal: Terminal) -> int:
    """The step that the view shows as done."""
    found = re.search(r"step (\d+)/\d+", terminal.text)
    return int(found[1]) if found and terminal.is_alternate else -1


def shows_step(terminal: Terminal, step: int) -> None:
    terminal.wait_for(lambda: step_of(terminal) >= step or terminal.process.poll() is not None)
    assert step_of(terminal) >= step, terminal.text


def assert_as_before(terminal: Terminal) -> None:
    """The terminal is as the command found it."""
    assert terminal.attributes() == terminal.before
    assert not terminal.is_alternate
    assert terminal.has_cursor
    assert b"\x1b[3J" not in terminal.raw, "the scrollback was cleared"


def test_a_run_is_watched_resized_paused_and_stopped(tmp_path: Path, data: Path) -> None:
    with Terminal(noisy_run(tmp_path, data, 1000), environment=ENVIRONMENT) as terminal:
        terminal.wait_for("starting")
        assert "generate" in terminal.text, "the plan is there before the workers are"
        shows_step(terminal, 2)
        assert terminal.is_alternate
        assert not terminal.has_cursor
        for node in ("prompts", "generate", "verify", "noisy", "update_policy"):
            assert node in terminal.text
        assert not [text for text in SAID[:4] if text in terminal.text]
        terminal.resize(120, 40)
        terminal.wait_for(lambda: terminal.lines[39] != "" and "┘" in terminal.text)
        assert len(terminal.text.splitlines()) == 40
        terminal.resize(40, 10)
        terminal.wait_for(lambda: "generate" in terminal.text and step_of(terminal) > 0)
        terminal.resize(80, 24)
        terminal.press("p")
        terminal.wait_for("paused")
        paused_at = step_of(terminal)
        time.sleep(0.5)
        terminal.read()
        assert step_of(terminal) == paused_at
        terminal.press(" ")
        shows_step(terminal, paused_at + 1)
        terminal.press("?")
        terminal.wait_for("to the shell")
        terminal.press("?")
        terminal.wait_for("update_policy")
        terminal.press("qq")
        assert terminal.wait() == 130
        assert_as_before(terminal)
        last = "".join(terminal.lines)
        assert "stopped by q after step" in last
        assert "--resume auto" in last
    events = event_lines(tmp_path / "run")
    steps = [line["step"] for line in metrics_lines(tmp_path / "run") if line["pipeline"] == "grpo"]
    assert (tmp_path / f"run/checkpoints/step_{steps[-1]:06d}").is_dir()
    by_name = {event["event"]: event for event in events}
    assert by_name["RunPaused"]["step"] == by_name["RunContinued"]["step"] == paused_at + 1
    assert [event["by"] for event in events if event["event"] == "StopRequested"] == ["q"]
    assert events[-1]["outcome"] == "stopped"
    console = (tmp_path / "run/console.log").read_text()
    assert [text for text in SAID if console.count(text) < len(steps)] == []
    warned = "\n".join(event["text"] for event in events if event["event"] == "Warned")
    assert "library: logged by a library" in warned
    assert "UserWarning: python warns" in warned
    assert "said by print" in "".join(event["text"] for event in events if event["event"] == "ConsoleWritten")


def test_a_run_whose_view_is_killed_goes_on_with_lines(tmp_path: Path, data: Path) -> None:
    with Terminal(noisy_run(tmp_path, data, 20), environment=ENVIRONMENT) as terminal:
        shows_step(terminal, 2)
        view = terminal.view()
        assert "torch" not in "".join(each.path for each in view.memory_maps())
        view.kill()
        assert terminal.wait() == 0
        _, told, lines = terminal.raw.partition(b"the live view is gone: it was ended by SIGKILL")
        assert told
        assert b"step 20/20 reward" in lines
        assert b"said by print" in lines
        assert any(line.startswith("done: ") for line in terminal.lines)
        assert_as_before(terminal)


def test_a_view_whose_run_is_killed_leaves_the_terminal_as_it_was(tmp_path: Path, data: Path) -> None:
    shell = ["sh", "-c", '"$@"; exec sleep 60', "sh"]  # the terminal goes with the first process that has it
    with Terminal([*shell, *noisy_run(tmp_path, data, 1000)], environment=ENVIRONMENT) as terminal:
        shows_step(terminal, 1)
        view = terminal.view()
        view.parent().kill()
        terminal.wait_for(lambda: not view.is_running(), 10)
        terminal.read(0.1)
        assert_as_before(terminal)
        assert "the run is gone" in terminal.text
        assert "--resume auto" in "".join(terminal.lines)


def view_of(folder: Path, *more: str) -> list[str]:
    return [sys.executable, "-m", "dagrl.cli", "view", str(folder), *more]


def test_two_views_of_different_size_follow_a_run(tmp_path: Path, data: Path) -> None:
    out = tmp_path / "run"
    run = start(noisy_run(tmp_path, data, 1000))
    try:
        assert wait_for(run, out, after(3))
        with (
            Terminal(view_of(out), environment=ENVIRONMENT) as small,
            Terminal(view_of(out), 130, 45, environment=ENVIRONMENT) as large,
        ):
            shows_step(small, 3)
            shows_step(large, 4)
            assert "█" in large.text
            small.press("q")
            assert small.wait(10) == 0
            assert_as_before(small)
            shows_step(large, step_of(large) + 1)
    finally:
        run.kill()
        run.communicate()
    text = subprocess.run([*view_of(out), "--at", "3"], cwd=ROOT, env=ENVIRONMENT, capture_output=True, text=True)
    assert text.returncode == 0
    assert "step 3/1000" in text.stdout
    assert "\x1b" not in text.stdout
    assert max(map(len, text.stdout.splitlines())) <= 120
    missing = subprocess.run([*view_of(out), "--at", "999"], cwd=ROOT, env=ENVIRONMENT, capture_output=True, text=True)
    assert missing.returncode == 2
    assert re.search(r"has no step 999: steps 1 to \d+ are there", missing.stderr)


@pytest.mark.long
def test_a_view_follows_a_run_that_is_killed_and_goes_on(tmp_path: Path, data: Path) -> None:
    line = noisy_run(tmp_path, data, 1000, "--save-every", "2", "--resume", "auto")
    out = tmp_path / "run"
    run = start(line)
    try:
        assert wait_for(run, out, after(3))
        with Terminal(view_of(out), 130, 45, environment=ENVIRONMENT) as view:
            shows_step(view, 4)
            run.kill()
            run.communicate()
            view.wait_for("its process is gone")
            shown = step_of(view)
            run = start(line)
            assert wait_for(run, out, after(shown + 1))
            shows_step(view, shown + 1)
            view.wait_for(lambda: "its process is gone" not in view.text, 10)  # it looks for the process now and then
            view.press("q")
            assert view.wait(10) == 0
            assert_as_before(view)
    finally:
        run.kill()
        run.communicate()


def test_what_is_no_run_cannot_be_viewed(tmp_path: Path) -> None:
    done = subprocess.run(view_of(tmp_path), cwd=ROOT, env=ENVIRONMENT, capture_output=True, text=True)
    assert done.returncode == 2
    assert f"there is no run in `{tmp_path}`: nothing is there" in done.stderr
    assert "fix" in done.stderr


@pytest.mark.long
def test_a_quiet_run_says_where_it_is_done(tmp_path: Path, data: Path) -> None:
    with Terminal(command(data, tmp_path / "run", 2, "--ui", "quiet"), environment=ENVIRONMENT) as terminal:
        assert terminal.wait() == 0
        assert re.fullmatch(rb"done: [^\n]*\n", terminal.raw.replace(b"\r\n", b"\n"))
        assert terminal.attributes() == terminal.before
    assert not (tmp_path / "run/console.log").exists()


MODE = "from dagrl.cli.ui_option import mode_of; import sys; print('mode', mode_of(None))"


@pytest.mark.parametrize(
    ("environment", "mode"), [({"TERM": "xterm"}, "live"), ({"TERM": "dumb"}, "lines"), ({"TERM": ""}, "lines")]
)
def test_a_terminal_that_can_only_take_lines_gets_lines(environment: dict[str, str], mode: str) -> None:
    with Terminal([sys.executable, "-c", MODE], environment={**ENVIRONMENT, **environment}) as terminal:
        terminal.wait_for(f"mode {mode}")
    piped = subprocess.run([sys.executable, "-c", MODE], capture_output=True, text=True, cwd=ROOT)
    assert piped.stdout == "mode lines\n"


def test_a_live_view_that_is_asked_for_needs_a_terminal(tmp_path: Path, data: Path) -> None:
    line = command(data, tmp_path / "run", 2, "--ui", "live")
    done = subprocess.run(line, cwd=ROOT, env=ENVIRONMENT, capture_output=True, text=True, stdin=subprocess.DEVNULL)
    assert done.returncode == 2
    assert "`--ui live` needs a terminal" in done.stderr


@pytest.mark.skipif(shutil.which("bash") is None, reason="needs a shell with job control")
def test_ctrl_z_gives_the_terminal_to_the_shell_and_ctrl_c_ends_the_run(tmp_path: Path, data: Path) -> None:
    shell = ["bash", "--norc", "--noprofile", "-i"]
    with Terminal(shell, environment={**ENVIRONMENT, "PS1": "prompt> "}) as terminal:
        terminal.wait_for("prompt>")
        terminal.press(shlex.join(noisy_run(tmp_path, data, 1000)) + "\n")
        shows_step(terminal, 1)
        terminal.press("\x1a")
        terminal.wait_for("Stopped")
        assert not terminal.is_alternate
        assert terminal.has_cursor
        terminal.press("echo $((6*7))\n")
        terminal.wait_for("\n42")
        terminal.press("fg\n")
        terminal.wait_for(lambda: terminal.is_alternate)
        shows_step(terminal, step_of(terminal) + 1)
        terminal.press("\x03")
        terminal.wait_for("stopped by Ctrl-C after step")
        assert not terminal.is_alternate
        terminal.press("echo code $?\n")
        terminal.wait_for("\ncode 130")
        assert "Traceback" not in terminal.text
    assert event_lines(tmp_path / "run")[-1]["outcome"] == "stopped"


def test_a_node_that_fails_is_told_below_the_view(tmp_path: Path, data: Path) -> None:
    line = noisy_run(tmp_path, data, 1000)
    source = (tmp_path / "noisy.py").read_text()
    (tmp_path / "noisy.py").write_text(source.replace("    time.sleep(0.1)", "    raise ValueError('no more')"))
    with Terminal(line, environment=ENVIRONMENT) as terminal:
        assert terminal.wait() == 1
        assert_as_before(terminal)
        assert "ValueError: no more" in terminal.text
        assert "in node `noisy`" in terminal.text


@pytest.mark.long
def test_a_run_in_a_bucket_keeps_its_console_there_and_can_be_viewed(
    tmp_path: Path, data: Path, s3_bucket: str
) -> None:
    line = noisy_run(tmp_path, data, 2)
    url = f"{s3_bucket}/{tmp_path.name}"
    line[line.index("--out") + 1] = url
    with Terminal(line, environment={**os.environ, **ENVIRONMENT}) as terminal:
        shows_step(terminal, 1)
        assert terminal.wait() == 0
        assert_as_before(terminal)
    assert Folder(url).read("console.log").count(b"said by a child") == 2
    view = [sys.executable, "-m", "dagrl.cli", "view", url]
    text = subprocess.run(view, cwd=ROOT, capture_output=True, text=True)
    assert text.returncode == 0, text.stderr
    assert "2/2" in text.stdout


@pytest.mark.long
def test_a_breakpoint_gets_the_terminal(tmp_path: Path, data: Path) -> None:
    line = noisy_run(tmp_path, data, 3)
    source = (tmp_path / "noisy.py").read_text()
    (tmp_path / "noisy.py").write_text(source.replace("    time.sleep(0.1)", "    breakpoint()"))
    with Terminal(line, environment=ENVIRONMENT) as terminal:
        terminal.wait_for("(Pdb)")
        assert not terminal.is_alternate
        terminal.press("c\n")
        terminal.wait_for("step 1/3")
        terminal.press("q\n")
        assert terminal.wait() != 0
