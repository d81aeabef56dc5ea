"""`dagrl plan`: drawings by where they are printed, and the files it writes."""

import json
import os
import pty
import subprocess
import sys
from pathlib import Path
from xml.etree import ElementTree

import pytest
from support import GRPO, ROOT

from dagrl.cli.main import cli
from dagrl.errors import ConfigError

BOX = "│ update_policy"


def plan(*words: str) -> None:
    cli.main(["plan", str(GRPO), *words], standalone_mode=False)


def printed(capsys: pytest.CaptureFixture[str], *words: str) -> str:
    plan(*words)
    return capsys.readouterr().out


def in_terminal(columns: int, **environment: str) -> str:
    """What the command writes to a terminal of 40 rows."""
    main, side = pty.openpty()
    os.set_blocking(main, True)
    values = {
        "TERM": "xterm-256color",
        **{k: v for k, v in os.environ.items() if k not in ("COLUMNS", "NO_COLOR", "TERM")},
    }
    code = (
        f"import fcntl, struct, termios; fcntl.ioctl(1, termios.TIOCSWINSZ, struct.pack('HHHH', 40, {columns}, 0, 0))"
    )
    program = (
        f"{code}; import sys; sys.argv = ['dagrl', 'plan', {str(GRPO)!r}]; from dagrl.cli.main import main; main()"
    )
    process = subprocess.Popen(
        [sys.executable, "-c", program], stdin=side, stdout=side, stderr=side, env={**values, **environment}, cwd=ROOT
    )
    os.close(side)
    read: list[bytes] = []
    try:
        while part := os.read(main, 65536):
            read.append(part)
    except OSError:  # how a terminal ends whose programs have
        pass
    os.close(main)
    assert process.wait() == 0, b"".join(read)
    return b"".join(read).decode()


def test_without_a_terminal_it_is_plain_and_as_wide_as_columns_says(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    for columns, is_boxed in ((None, True), ("100", True), ("60", False), ("5", False), ("wide", True)):
        if columns is None:
            monkeypatch.delenv("COLUMNS", raising=False)
        else:
            monkeypatch.setenv("COLUMNS", columns)
        text = printed(capsys)
        drawing = text.split("  1  prompts")[0]
        assert "\x1b" not in text
        assert (BOX in drawing) == is_boxed
        assert ("├─ verify" in drawing) == ("╭" not in drawing)


def test_in_a_terminal_it_has_colours_and_its_width() -> None:
    wide = in_terminal(120)
    assert BOX not in wide  # between the two is a colour
    assert "\x1b[35m│ " in wide
    assert "1;35mupdate_policy" in wide
    narrow = in_terminal(60)
    assert "╭" not in narrow.split("pipeline eval")[0]
    assert "├─ " in narrow
    grey = in_terminal(120, NO_COLOR="1")
    assert "35m" not in grey
    assert "╭" in grey


def test_an_encoding_without_lines_gets_the_table_alone() -> None:
    command = [sys.executable, "-m", "dagrl.cli", "plan", str(GRPO)]
    environment = {**os.environ, "PYTHONIOENCODING": "ascii"}
    done = subprocess.run(command, capture_output=True, cwd=ROOT, env=environment)
    assert done.returncode == 0, done.stderr
    text = done.stdout.decode("ascii")
    assert "\\u" not in text
    assert "  1  prompts  (grpo.py:" in text


def test_files_are_written_over_and_hold_every_pipeline(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    chart, drawing = tmp_path / "plan.mmd", tmp_path / "plan.svg"
    chart.write_text("old")
    text = printed(capsys, "--mermaid", str(chart), "--svg", str(drawing))
    assert "  1  prompts" in text
    assert chart.read_text().startswith("flowchart LR\n")
    assert 'subgraph p0["grpo"]' in chart.read_text()
    assert 'subgraph p1["eval"]' in chart.read_text()
    ElementTree.parse(drawing)
    assert "update_policy" in drawing.read_text()
    assert "report" in drawing.read_text()


def test_json_stays_json(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    text = printed(capsys, "--json", "--mermaid", str(tmp_path / "plan.mmd"))
    assert [one["pipeline"] for one in json.loads(text)] == ["grpo", "eval"]


@pytest.mark.parametrize("option", ["--mermaid", "--svg"])
def test_a_file_that_cannot_be_written_is_named(option: str, tmp_path: Path) -> None:
    path = tmp_path / "missing" / "plan"
    with pytest.raises(ConfigError) as caught:
        plan(option, str(path))
    message = caught.value.message()
    assert f"`{path}` cannot be written: No such file or directory." in message
    assert f"option  `{option} {path}`" in message
    assert "fix     name a file in a folder you may write to" in message
