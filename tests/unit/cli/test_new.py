"""`dagrl new`: files that work as they are, and nothing overwritten."""

import os
import subprocess
import sys
from pathlib import Path

import pytest

from dagrl.cli.main import _exit_code
from dagrl.cli.new_files import write_new
from dagrl.errors import ConfigError


def dagrl(monkeypatch: pytest.MonkeyPatch, *arguments: str) -> int:
    monkeypatch.setattr("sys.argv", ["dagrl", *arguments])
    return _exit_code()


def test_what_it_writes_passes_check_and_pytest(tmp_path, monkeypatch, capsys) -> None:
    monkeypatch.chdir(tmp_path)
    for kind in ("node", "loss", "pipeline"):
        assert dagrl(monkeypatch, "new", kind, f"made_{kind}", "--dir", "own") == 0
        assert dagrl(monkeypatch, "check", f"own/made_{kind}.py") == 0
    assert "next: edit own/made_node.py, then `dagrl check own/made_node.py`" in capsys.readouterr().out
    assert sorted(path.name for path in (tmp_path / "own").glob("*.py")) == sorted(
        f"{prefix}made_{kind}.py" for kind in ("node", "loss", "pipeline") for prefix in ("", "test_")
    )
    done = subprocess.run(
        [sys.executable, "-m", "pytest", "-q", "own"], capture_output=True, text=True, env={**os.environ}
    )
    assert done.returncode == 0, done.stdout
    assert "6 passed" in done.stdout


#: Names that read like a trap and are none: the files work.
@pytest.mark.parametrize(("kind", "name"), [("node", "match"), ("node", "Rewards2"), ("loss", "rewards")])
def test_names_that_work(kind: str, name: str, tmp_path, monkeypatch) -> None:
    monkeypatch.chdir(tmp_path)
    assert dagrl(monkeypatch, "new", kind, name) == 0
    done = subprocess.run([sys.executable, "-m", "pytest", "-q", "."], capture_output=True, text=True)
    assert "2 passed" in done.stdout, done.stdout


NO_NAME = "is no name for a Python file and what it defines"
ITS_OWN = "means something else in the file to be written"


@pytest.mark.parametrize("kind", ["node", "loss", "pipeline"])
@pytest.mark.parametrize(
    ("name", "text"),
    [
        ("my-node", f"`my-node` {NO_NAME}"),
        ("ünï", f"`ünï` {NO_NAME}"),
        ("__init__", f"`__init__` {NO_NAME}"),
        ("__main__", f"`__main__` {NO_NAME}"),
        ("_", f"`_` {NO_NAME}"),
        ("1st", f"`1st` {NO_NAME}"),
        ("a/b", f"`a/b` {NO_NAME}"),
        ("..", f"`..` {NO_NAME}"),
        ("", NO_NAME),
        ("class", "`class` is a word of Python's own"),
        ("None", "`None` is a word of Python's own"),
        ("torch", "there is a module `torch` already"),
        ("json", "there is a module `json` already"),
        ("dagrl", "there is a module `dagrl` already"),
        ("test_it", "`test_it` is the name of a test"),
        ("x" * 260, "a name of 260 characters is too long for a file"),
        ("there", "`there.py` exists already"),
        ("half", "`test_half.py` exists already"),
    ],
    ids=lambda text: text[:20],
)
def test_refusals_write_nothing(kind, name, text, tmp_path, monkeypatch, capsys) -> None:
    refused(kind, name, text, tmp_path, monkeypatch, capsys)


@pytest.mark.parametrize(
    ("kind", "name", "text"),
    [
        ("node", "verify", "dagrl has a `verify` already"),
        ("loss", "policy", "dagrl has a `policy` already"),
        ("node", "sum", f"`sum` {ITS_OWN}"),
        ("node", "Tensor", f"`Tensor` {ITS_OWN}"),
        ("node", "rewards", f"`rewards` {ITS_OWN}"),
        ("node", "check_node", f"`check_node` {ITS_OWN}"),
        ("loss", "mean_metric", f"`mean_metric` {ITS_OWN}"),
        ("loss", "losses", f"`losses` {ITS_OWN}"),
    ],
)
def test_a_function_does_not_take_a_name_that_is_in_use(kind, name, text, tmp_path, monkeypatch, capsys) -> None:
    refused(kind, name, text, tmp_path, monkeypatch, capsys)


def refused(kind, name, text, tmp_path, monkeypatch, capsys) -> None:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "there.py").write_text("mine")
    (tmp_path / "test_half.py").write_text("mine")
    before = sorted(tmp_path.iterdir())
    assert dagrl(monkeypatch, "new", kind, name) == 2
    said = capsys.readouterr().err
    assert text in said
    assert "     fix  " in said
    assert sorted(tmp_path.iterdir()) == before
    assert (tmp_path / "there.py").read_text() == (tmp_path / "test_half.py").read_text() == "mine"


@pytest.mark.parametrize("folder", ["/dev/null/x", "file", "file/below", "x" * 300])
def test_a_folder_that_cannot_be_made(folder, tmp_path, monkeypatch, capsys) -> None:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "file").write_text("mine")
    assert dagrl(monkeypatch, "new", "node", "node_without_a_place", "--dir", folder) == 2
    said = capsys.readouterr().err
    assert f"nothing can be written to `{folder}`" in said
    assert "--dir FOLDER" in said
    assert "Traceback" not in said
    assert [path.name for path in tmp_path.iterdir()] == ["file"]


def test_a_folder_that_takes_no_files(tmp_path) -> None:
    """The kernel's own folder stands for one that is read-only: it refuses the superuser too."""
    with pytest.raises(ConfigError, match="nothing can be written to `/proc`"):
        write_new({Path("/proc/mine.py"): "text"})


def test_all_files_are_written_or_none(tmp_path) -> None:
    (tmp_path / "taken").write_text("mine")
    with pytest.raises(ConfigError, match="nothing can be written"):
        write_new({tmp_path / "first.py": "text", tmp_path / "taken" / "second.py": "text"})
    assert [path.name for path in tmp_path.iterdir()] == ["taken"]


def test_an_unknown_kind(monkeypatch, capsys) -> None:
    assert dagrl(monkeypatch, "new", "reward", "x") == 2
    assert "'node', 'loss', 'pipeline'" in capsys.readouterr().err
