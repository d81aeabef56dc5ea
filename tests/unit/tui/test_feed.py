"""The run's side of the view: nothing waits for a view that stands still, and the view's process stays light."""

import os
import subprocess
import sys
from pathlib import Path

from killing import ENVIRONMENT
from support import ROOT
from terminal import Terminal

#: Starts a view, waits for a key, stops the view's process, and floods it.
FLOOD = """
import os, signal, sys, time
import psutil
from dagrl.executor.events import Warned
from dagrl.tui.feed import Feed
from dagrl.tui.run_info import RunInfo
feed = Feed(RunInfo(), 1)
while "pause" not in feed.words():
    feed.wait(0.1)
(view,) = psutil.Process().children()
view.send_signal(signal.SIGSTOP)
longest = told = 0
while feed.alive and told < 60_000:
    started = time.monotonic()
    feed.tell(Warned(0.0, "x" * 1000))
    told += 1
    if feed.alive:
        longest = max(longest, time.monotonic() - started)
print("alive", feed.alive, "told", told, "in time", longest < 5.0, feed.why())
"""

#: Starts a view and ends it.
CLOSE = """
from dagrl.tui.feed import Feed
from dagrl.tui.run_info import RunInfo
feed = Feed(RunInfo(title="a title"), 1)
while "pause" not in feed.words():
    feed.wait(0.1)
feed.close()
print("closed:", feed.why())
"""

#: Starts a view whose frames cannot be made.
CRASH = """
from dagrl.tui.feed import Feed
from dagrl.tui.run_info import RunInfo
feed = Feed(RunInfo(title=5), 1)
while feed.alive:
    feed.wait(0.1)
print(feed.why())
"""

#: A log may be told half a line, then a whole one: the run was interrupted while it told the first.
INTERRUPTED = """
import time
from dagrl.executor.events import Warned
from dagrl.tui.feed import Feed
from dagrl.tui.run_info import RunInfo
feed = Feed(RunInfo(title="a title"), 1)
feed._send(b'{"event": "War')
feed.tell(Warned(time.time(), "mind the gap"))
while "pause" not in feed.words():
    feed.wait(0.1)
feed.close()
"""


def test_a_view_that_crashes_is_let_go_and_leaves_the_terminal_as_it_was(tmp_path: Path) -> None:
    with Terminal([sys.executable, "-c", CRASH], environment=ENVIRONMENT) as terminal:
        assert terminal.wait() == 0
        assert "it failed with exit code 1" in terminal.text
        assert not terminal.is_alternate
        assert terminal.has_cursor
        assert terminal.attributes() == terminal.before


def test_half_a_line_is_passed_over(tmp_path: Path) -> None:
    with Terminal([sys.executable, "-c", INTERRUPTED], environment=ENVIRONMENT) as terminal:
        terminal.wait_for("mind the gap")
        terminal.press("p")
        assert terminal.wait() == 0


def test_a_view_that_stands_still_is_let_go(tmp_path: Path) -> None:
    with Terminal([sys.executable, "-c", FLOOD], environment=ENVIRONMENT) as terminal:
        terminal.wait_for(lambda: terminal.is_alternate)
        terminal.press("p")
        assert terminal.wait() == 0
        assert "alive False" in terminal.text
        assert "in time True it was ended by SIGKILL" in terminal.text
        assert not terminal.is_alternate
        assert terminal.has_cursor
        assert terminal.attributes() == terminal.before


def test_a_view_leaves_at_once_when_it_is_asked_to(tmp_path: Path) -> None:
    with Terminal([sys.executable, "-c", CLOSE], environment=ENVIRONMENT, cwd=tmp_path) as terminal:
        terminal.wait_for("a title")
        terminal.press("p")
        assert terminal.wait() == 0
        assert "closed: it has ended" in terminal.text
        assert "the run is gone" not in terminal.text
        assert terminal.attributes() == terminal.before


def test_a_view_that_is_stopped_by_ctrl_s_does_not_hold_up_the_end(tmp_path: Path) -> None:
    with Terminal([sys.executable, "-c", CLOSE], environment=ENVIRONMENT) as terminal:
        terminal.wait_for("a title")
        terminal.press("p\x13")
        terminal.read(2.0)
        assert not terminal.view_is_there()
        terminal.press("\x11")
        assert terminal.wait() == 0
        assert terminal.attributes() == terminal.before


def test_the_process_that_draws_loads_nothing_heavy() -> None:
    code = "import dagrl.tui.live, sys; print(' '.join(sorted(sys.modules)))"
    done = subprocess.run(
        [sys.executable, "-c", code], capture_output=True, text=True, cwd=ROOT, check=True, env=dict(os.environ)
    )
    loaded = set(done.stdout.split())
    heavy = {
        "torch",
        "ray",
        "transformers",
        "tensordict",
        "vllm",
        "fsspec",
        "pyarrow",
        "click",
        "numpy",
        "networkx",
        "pydantic",
    }
    assert not {name.split(".")[0] for name in loaded} & heavy
    ours = {name.split(".")[1] for name in loaded if name.startswith("dagrl.")}
    assert {name for name in loaded if name.startswith("dagrl.storage.")} <= {"dagrl.storage.json_lines"}
    assert not ours & {"trainer", "workers", "engines", "controller", "nodes", "cli"}
