"""``dagrl view`` of folders that are damaged, and how the view ends."""

import json
import os
import shutil
import signal
import subprocess
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import psutil
import pytest
from killing import ENVIRONMENT
from recorded_run import FOLDER
from support import ROOT
from terminal import Terminal

from dagrl.cli.view import Followed
from dagrl.errors import ConfigError
from dagrl.storage.run_reader import RunReader


@pytest.fixture
def run(tmp_path: Path) -> Path:
    """The folder of a run that happened."""
    (tmp_path / "events").mkdir()
    shutil.copy(FOLDER / "events.jsonl", tmp_path / "events/000000.jsonl")
    shutil.copy(FOLDER / "plan.json", tmp_path / "plan.json")
    (tmp_path / "config.json").write_text("{}")
    return tmp_path


def picture(folder: Path) -> str:
    lines = Followed(RunReader(str(folder)), None).picture(120, 40, 0, with_help=False)
    return "\n".join(line.plain for line in lines)


def emptied(plans: Any) -> Any:
    return type(plans)()


def of_numbers(plans: Any) -> Any:
    return list(range(len(plans)))


def as_text(plans: Any) -> Any:
    return str(plans)


def without_ops(plans: Any) -> Any:
    return [{name: value for name, value in plan.items() if name != "ops"} for plan in plans]


def with_strange_order(plans: Any) -> Any:
    for op in plans[0]["ops"]:
        op["after"] = ["nobody"]
    return plans


@pytest.mark.parametrize("damage", [emptied, of_numbers, as_text, without_ops, with_strange_order])
def test_plans_that_cannot_be_read_are_an_error_that_says_so(run: Path, damage: Callable[[Any], Any]) -> None:
    (run / "plan.json").write_text(json.dumps(damage(json.loads((run / "plan.json").read_text()))))
    with pytest.raises(ConfigError, match="holds no plans that this version of dagrl can read"):
        picture(run)


@pytest.mark.parametrize("content", [b"", b"{", b"\xff\x00", b"[" * 100_000])
def test_a_plan_that_is_no_json_is_an_error_that_says_so(run: Path, content: bytes) -> None:
    (run / "plan.json").write_bytes(content)
    with pytest.raises(ConfigError, match=r"plan.json` is not JSON"):
        picture(run)


@pytest.mark.parametrize("name", ["plan.json", "events/000000.jsonl"])
def test_what_cannot_be_opened_is_an_error_that_says_so(run: Path, name: str) -> None:
    (run / name).unlink()
    (run / name).mkdir()
    with pytest.raises(ConfigError, match="cannot be reached: IsADirectoryError"):
        picture(run)


@pytest.mark.parametrize("content", [b"[]", b"3", b"{}", b'{"pid": 1}', b"\xff"])
def test_a_damaged_lock_is_nobodys(run: Path, content: bytes) -> None:
    (run / "lock.json").write_bytes(content)
    assert "step 6" in picture(run)


def test_a_damaged_line_that_comes_while_the_run_is_viewed_is_passed_over(run: Path) -> None:
    followed = Followed(RunReader(str(run)), None)
    warning = b'{"event": "Warned", "at": 1.0, "text": "mind the gap"}\n'
    with (run / "events/000000.jsonl").open("ab") as file:
        file.write(b"[]\n" + warning[:20] + b"\n" + warning)
    assert followed.read()
    assert "mind the gap" in "".join(line.plain for line in followed.picture(120, 40, 0, with_help=False))


def test_a_folder_that_cannot_be_reached_for_a_while_is_read_from_its_beginning_then(run: Path) -> None:
    followed = Followed(RunReader(str(run)), None)
    shown = followed.picture(120, 40, 0, with_help=False)
    segment = run / "events/000000.jsonl"
    content = segment.read_bytes()
    segment.unlink()
    segment.mkdir()
    assert not followed.read()
    assert followed.picture(120, 40, 0, with_help=False) == shown
    segment.rmdir()
    segment.write_bytes(content)
    assert followed.read()
    assert followed.picture(120, 40, 0, with_help=False) == shown


def command(folder: Path) -> list[str]:
    return [sys.executable, "-m", "dagrl.cli", "view", str(folder)]


@pytest.mark.parametrize("columns", ["abc", "0", "-5"])
def test_a_width_that_is_none_is_not_used(run: Path, columns: str) -> None:
    environment = {**ENVIRONMENT, "COLUMNS": columns}
    done = subprocess.run(command(run), cwd=ROOT, env=environment, capture_output=True, text=True)
    assert done.returncode == 0
    assert max(map(len, done.stdout.splitlines())) == 120


@contextmanager
def not_ignored(number: signal.Signals) -> Iterator[None]:
    """Processes that are started inside hear the signal, though this one may have been told not to, as by nohup."""
    before = signal.getsignal(number)
    if before is signal.SIG_IGN:
        signal.signal(number, signal.SIG_DFL)
    yield
    signal.signal(number, before)


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGQUIT, signal.SIGHUP, signal.SIGTERM])
def test_every_signal_that_ends_the_view_leaves_the_terminal_as_it_was(run: Path, number: signal.Signals) -> None:
    shell = ["sh", "-c", '"$@"; echo code $?; exec sleep 60', "sh"]
    with not_ignored(number), Terminal([*shell, *command(run)], environment={**os.environ, **ENVIRONMENT}) as terminal:
        terminal.wait_for(lambda: terminal.is_alternate)
        view: list[psutil.Process] = [each for each in terminal.children() if "dagrl.cli" in each.cmdline()]
        for _ in range(2):
            view[-1].send_signal(number)
        terminal.wait_for(f"code {128 + number}", 30)
        assert terminal.attributes() == terminal.before
        assert not terminal.is_alternate
        assert terminal.has_cursor
        assert "Traceback" not in terminal.text
