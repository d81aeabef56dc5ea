"""What `dagrl plan` prints for the shipped pipelines, word for word.

After a wanted change write the files anew: `DAGRL_UPDATE_SNAPSHOTS=1 pytest tests/plans`, and read the diff.
"""

import os
import sys
from pathlib import Path

import pytest
from support import GRPO, ROOT

from dagrl.cli import main as command

HERE = Path(__file__).parent
REFRESH = "DAGRL_UPDATE_SNAPSHOTS=1 .venv/bin/python -m pytest tests/plans"


def printed_plan(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch, *assignments: str, file: Path = GRPO
) -> str:
    arguments = [part for text in assignments for part in ("--set", text)]
    monkeypatch.delenv("COLUMNS", raising=False)
    monkeypatch.setattr(sys, "argv", ["dagrl", "plan", str(file), *arguments])
    with pytest.raises(SystemExit) as end:
        command.main()
    printed = capsys.readouterr()
    assert end.value.code == 0, printed.err
    return printed.out


@pytest.mark.parametrize(
    ("name", "assignments"),
    [("grpo", ()), ("grpo_no_kl", ("kl=0",)), ("grpo_mini_batches", ("mini_batch_size=128",))],
)
def test_the_printed_plan_is_the_snapshot(
    name: str, assignments: tuple[str, ...], capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    assert_snapshot(name, printed_plan(capsys, monkeypatch, *assignments))


@pytest.mark.parametrize("name", sorted({file.stem for file in GRPO.parent.glob("*.py")} - {"grpo"}))
def test_every_other_pipeline_has_a_snapshot(
    name: str, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    assert_snapshot(name, printed_plan(capsys, monkeypatch, file=GRPO.parent / f"{name}.py"))


def assert_snapshot(name: str, printed: str) -> None:
    file = HERE / f"{name}.txt"
    if os.environ.get("DAGRL_UPDATE_SNAPSHOTS"):
        file.write_text(printed)
    assert str(ROOT) not in printed
    assert printed == file.read_text(), f"the plan `{name}` changed; if that is meant: {REFRESH}"


def test_what_the_snapshots_must_say() -> None:
    default, no_kl, mini = ((HERE / f"{name}.txt").read_text() for name in ("grpo", "grpo_no_kl", "grpo_mini_batches"))
    assert "aliased old_logprob" in default
    assert "old_logprob = update_policy's own forward (alias)" in default
    assert "│ old_logprob " not in default
    assert "│ old_logprob " in mini
    assert "old_logprob  on actor" not in default
    assert "group ref" in default
    assert "pruned ref_logprob: only loss term `kl_loss` of `update_policy` would read it, with coefficient 0" in no_kl
    assert "group ref" not in no_kl
    assert "kept old_logprob: `update_policy` takes 512 rows in mini-batches of 128" in mini
    assert "old_logprob  on actor, train weights v" in mini
