"""`dagrl new`: files that work as they are, and nothing overwritten."""

import os
import subprocess
import sys

import pytest

from dagrl.cli.main import _exit_code


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


@pytest.mark.parametrize(
    ("name", "text"),
    [
        ("my-node", "`my-node` is no name for a Python function"),
        ("class", "`class` is no name for a Python function"),
        ("torch", "there is a module `torch` already"),
        ("there", "`there.py` exists already"),
        ("half", "`test_half.py` exists already"),
    ],
)
def test_refusals_write_nothing(name, text, tmp_path, monkeypatch, capsys) -> None:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "there.py").write_text("mine")
    (tmp_path / "test_half.py").write_text("mine")
    before = sorted(tmp_path.iterdir())
    assert dagrl(monkeypatch, "new", "node", name) == 2
    assert text in capsys.readouterr().err
    assert sorted(tmp_path.iterdir()) == before
    assert (tmp_path / "there.py").read_text() == (tmp_path / "test_half.py").read_text() == "mine"


def test_an_unknown_kind(monkeypatch, capsys) -> None:
    assert dagrl(monkeypatch, "new", "reward", "x") == 2
    assert "'node', 'loss', 'pipeline'" in capsys.readouterr().err
