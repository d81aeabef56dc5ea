"""The screen on a real pseudo-terminal: what is written, and that everything is restored."""

import os
import select
import termios
import tty
from collections.abc import Iterator

import pyte
import pytest
from rich.text import Text
from terminal import Emulator

from dagrl.tui.screen import Screen


class Pair:
    """A terminal, and an emulator at its other end."""

    def __init__(self) -> None:
        self.master, self.slave = os.openpty()
        termios.tcsetwinsize(self.slave, (3, 20))
        self.before = termios.tcgetattr(self.slave)
        self.emulator = Emulator(20, 3)
        self._stream = pyte.ByteStream(self.emulator)

    def written(self) -> str:
        """What has come since the last time, shown by the emulator too."""
        content = b""
        while select.select([self.master], [], [], 0.05)[0]:
            content += os.read(self.master, 65536)
        self._stream.feed(content)
        return content.decode()


@pytest.fixture
def pair(monkeypatch: pytest.MonkeyPatch) -> Iterator[Pair]:
    monkeypatch.setenv("TERM", "xterm-256color")
    monkeypatch.delenv("NO_COLOR", raising=False)
    monkeypatch.delenv("COLORTERM", raising=False)
    made = Pair()
    yield made
    os.close(made.master)
    os.close(made.slave)


def frame(*lines: str, style: str = "") -> list[Text]:
    return [Text(line.ljust(20), style=style) for line in lines]


def test_only_lines_that_changed_are_written_as_one_update(pair: Pair) -> None:
    screen = Screen(pair.slave, pair.slave)
    screen.enter()
    screen.draw(frame("one", "two", "three"))
    assert "one" in pair.written()
    assert [line.rstrip() for line in pair.emulator.display] == ["one", "two", "three"]
    screen.draw(frame("one", "TWO", "three"))
    written = pair.written()
    assert written.startswith("\x1b[?2026h\x1b[2;1H")
    assert written.endswith("\x1b[?2026l")
    assert "one" not in written
    assert "three" not in written
    assert [line.rstrip() for line in pair.emulator.display] == ["one", "TWO", "three"]
    screen.draw(frame("one", "TWO", "three"))
    assert pair.written() == ""
    screen.forget()
    screen.draw(frame("one", "TWO", "three"))
    assert "\x1b[2J" in pair.written()
    screen.leave()


def test_the_terminal_is_restored_and_its_scrollback_is_not_cleared(pair: Pair) -> None:
    os.write(pair.slave, b"before")
    pair.written()
    screen = Screen(pair.slave, pair.slave)
    screen.enter()
    screen.draw(frame("one", "two", "three"))
    entered = pair.written()
    assert pair.emulator.main is not None
    assert termios.tcgetattr(pair.slave) != pair.before
    assert termios.tcgetattr(pair.slave)[3] & termios.ISIG, "Ctrl-C has to reach the run"
    screen.leave()
    assert "\x1b[3J" not in entered + pair.written()
    assert pair.emulator.main is None
    assert pair.emulator.display[0].rstrip() == "before"
    assert termios.tcgetattr(pair.slave) == pair.before


def test_attributes_that_a_shell_has_set_meanwhile_are_left_alone(pair: Pair) -> None:
    screen = Screen(pair.slave, pair.slave)
    screen.enter()
    tty.setraw(pair.slave)
    raw = termios.tcgetattr(pair.slave)
    screen.leave()
    assert termios.tcgetattr(pair.slave) == raw


def test_control_characters_reach_no_terminal(pair: Pair) -> None:
    screen = Screen(pair.slave, pair.slave)
    screen.enter()
    pair.written()
    screen.draw(frame("a\x1b[2Jb\t\n\x9bc", "two", "three"))
    written = pair.written()
    assert "a?[2Jb???c" in written
    screen.leave()


@pytest.mark.parametrize(("name", "value", "colored"), [("TERM", "xterm-256color", True), ("NO_COLOR", "1", False)])
def test_colors_follow_the_environment(
    pair: Pair, monkeypatch: pytest.MonkeyPatch, name: str, value: str, colored: bool
) -> None:
    monkeypatch.setenv(name, value)
    screen = Screen(pair.slave, pair.slave)
    screen.enter()
    pair.written()
    screen.draw(frame("one", style="bold red"))
    written = pair.written()
    assert ("31m" in written) == colored
    assert "\x1b[1" in written, "bold is no color"
    screen.leave()


def test_a_terminal_that_is_stopped_is_not_waited_for(pair: Pair) -> None:
    screen = Screen(pair.slave, pair.slave)
    screen.enter()
    termios.tcflow(pair.slave, termios.TCOOFF)
    screen.draw([Text("x" * 20) for _ in range(100_000)])
    assert screen.is_busy
    screen.flush()
    termios.tcflow(pair.slave, termios.TCOON)
    pair.written()
    screen.leave()
    pair.written()
    assert pair.emulator.main is None
    assert termios.tcgetattr(pair.slave) == pair.before


def test_keys_come_one_by_one_arrows_by_name(pair: Pair) -> None:
    screen = Screen(pair.slave, pair.slave)
    screen.enter()
    os.write(pair.master, b"q\x1b[A\x1bOC \x1b[5~?")
    select.select([pair.slave], [], [], 1.0)
    assert screen.read_keys() == ["q", "up", "right", " ", "\x1b[5~", "?"]
    screen.leave()


def test_without_another_screen_the_cursor_is_below_the_frame_at_the_end(pair: Pair) -> None:
    plain = pyte.Screen(20, 3)
    screen = Screen(pair.slave, pair.slave)
    screen.enter()
    screen.draw(frame("one", "two", "three"))
    screen.draw(frame("ONE", "two", "three"))
    screen.leave()
    pyte.Stream(plain).feed(pair.written())
    assert plain.cursor.y == 2


def test_attributes_that_have_been_set_before_it_is_entered_again_are_those_to_restore(pair: Pair) -> None:
    screen = Screen(pair.slave, pair.slave)
    screen.enter()
    screen.leave()
    tty.setraw(pair.slave)
    raw = termios.tcgetattr(pair.slave)
    screen.enter()
    screen.leave()
    assert termios.tcgetattr(pair.slave) == raw


def test_a_terminal_that_is_gone_is_told_apart_from_one_that_is_slow(pair: Pair) -> None:
    master, slave = os.openpty()
    screen = Screen(slave, slave)
    screen.enter()
    os.close(master)
    with pytest.raises(EOFError):
        screen.draw(frame("one", "two", "three"))
    with pytest.raises(EOFError):
        screen.read_keys()
    screen.leave()
    os.close(slave)
