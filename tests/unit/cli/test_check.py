"""`dagrl check` on files: a line for each node and loss, every violation in one message, exit codes."""

import shutil
from pathlib import Path

import pytest

from dagrl.cli.declared_in_file import declared_in
from dagrl.cli.main import _exit_code

ROOT = Path(__file__).resolve().parent.parent.parent.parent
BAD = """
from jaxtyping import Float32
from torch import Tensor

from dagrl import node
from dagrl.nodes import verify  # one of dagrl's own is not checked


@node(writes="rewards")
def cut(rewards: Float32[Tensor, " B"]) -> Float32[Tensor, " B"]:
    return rewards - rewards.nanmean()


@node(writes="rewards")
def double(rewards: Float32[Tensor, " B"]) -> Float32[Tensor, " B"]:
    return rewards.double()
"""


def dagrl(monkeypatch: pytest.MonkeyPatch, *arguments: str) -> int:
    monkeypatch.setattr("sys.argv", ["dagrl", *arguments])
    return _exit_code()


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.chdir(tmp_path)
    return tmp_path


def test_a_kept_contract(folder, monkeypatch, capsys) -> None:
    shutil.copy(ROOT / "plugins" / "short_reward.py", folder / "fine_reward.py")
    assert dagrl(monkeypatch, "check", "fine_reward.py") == 0
    assert capsys.readouterr().out == "node short_reward             ok  (fine_reward.py:9)\n"


def test_all_violations_come_in_one_message(folder, monkeypatch, capsys) -> None:
    (folder / "bad.py").write_text(BAD)
    assert dagrl(monkeypatch, "check", "bad.py") == 2
    shown = capsys.readouterr()
    assert [line.split()[1] for line in shown.out.splitlines()] == ["cut", "double"]
    assert all("FAIL, " in line for line in shown.out.splitlines())
    assert shown.err.startswith("ContractViolationError: `bad.py`: the declaration is not kept, 2 problems:")
    assert "1. node `cut`: a row alone gives another result than among others: `rewards` of row 0 was" in shown.err
    assert "2. node `double`: returned float64[12] for `rewards`, declared f32[B].\n     at    bad.py:14" in shown.err
    assert "rule  each row by itself" in shown.err
    assert 'fix   compute each row by itself, or declare split="group" or split="batch"' in shown.err
    assert "Traceback" not in shown.err


def test_a_pipeline_checks_what_it_imports(folder, monkeypatch, capsys) -> None:
    (folder / "bad_module.py").write_text(BAD)
    (folder / "step.py").write_text("import bad_module\nfrom dagrl.nodes import generate\n")
    assert dagrl(monkeypatch, "check", "step.py") == 2
    assert "2 problems" in capsys.readouterr().err


def test_nothing_to_check(folder, monkeypatch, capsys) -> None:
    (folder / "plain.py").write_text("from dagrl.nodes import generate\n")
    assert dagrl(monkeypatch, "check", "plain.py") == 0
    assert "defines and imports no node or loss of its own" in capsys.readouterr().out


@pytest.mark.parametrize(
    ("arguments", "text"),
    [
        ((), "`dagrl check` was given no file"),
        (("missing.py",), "there is no file `missing.py`"),
        (("broken.py",), "SyntaxError"),
    ],
)
def test_input_that_cannot_be_checked(arguments, text, folder, monkeypatch, capsys) -> None:
    (folder / "broken.py").write_text("def broken(:\n")
    assert dagrl(monkeypatch, "check", *arguments) == 2
    assert text in capsys.readouterr().err


def test_a_node_imported_twice_is_checked_once(folder) -> None:
    (folder / "mod_bad.py").write_text(BAD)
    (folder / "again.py").write_text("import mod_bad\nfrom mod_bad import cut\n")
    assert [one.contract.name for one in declared_in("again.py")] == ["cut", "double"]
