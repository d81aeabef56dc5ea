"""A command on a pseudo-terminal of its own, and what an emulator of that terminal shows."""

import copy
import fcntl
import os
import select
import signal
import struct
import subprocess
import termios
import time
from collections.abc import Callable, Mapping
from pathlib import Path
from types import TracebackType
from typing import Any

import psutil
import pyte
from support import ROOT

_ALTERNATE = 1049 << 5
_HIDDEN_CURSOR = 25 << 5


class Emulator(pyte.Screen):
    """Pyte's screen with the alternate one, which it lacks."""

    def __init__(self, width: int, height: int) -> None:
        super().__init__(width, height)
        self.main: tuple[Any, Any] | None = None

    def set_mode(self, *modes: int, **more: Any) -> None:
        super().set_mode(*modes, **more)
        if 1049 in modes and self.main is None:
            self.main = copy.deepcopy(self.buffer), copy.deepcopy(self.cursor)
            self.erase_in_display(2)

    def reset_mode(self, *modes: int, **more: Any) -> None:
        super().reset_mode(*modes, **more)
        if 1049 in modes and self.main is not None:
            (buffer, cursor), self.main = self.main, None
            self.buffer.clear()
            self.buffer.update(buffer)
            self.cursor = cursor


class Terminal:
    """Runs a command; ``read`` brings the screen up to date."""

    def __init__(
        self,
        command: list[str],
        width: int = 80,
        height: int = 24,
        cwd: Path = ROOT,
        environment: Mapping[str, str] | None = None,
    ) -> None:
        self._master, self._slave = os.openpty()
        self._screen = Emulator(width, height)
        self._stream = pyte.ByteStream(self._screen)
        self.raw = b""
        self._set_size(width, height)
        self.before = self.attributes()
        self.process = subprocess.Popen(
            command,
            cwd=cwd,
            env={"TERM": "xterm-256color", **(os.environ if environment is None else environment)},
            stdin=self._slave,
            stdout=self._slave,
            stderr=self._slave,
            start_new_session=True,
            preexec_fn=_own_terminal,
        )

    def __enter__(self) -> "Terminal":
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        left = self.children()
        self.process.kill()
        self.process.wait()
        for each in left:
            if each.is_running():
                each.kill()
        self.hang_up()

    def hang_up(self) -> None:
        """Close the terminal, as somebody does who closes its window."""
        for end in (self._master, self._slave):
            if end >= 0:
                os.close(end)
        self._master = self._slave = -1

    @property
    def text(self) -> str:
        """The lines of the screen, as they were last read."""
        return "\n".join(line.rstrip() for line in self._screen.display)

    @property
    def lines(self) -> list[str]:
        return [line.rstrip() for line in self._screen.display]

    @property
    def is_alternate(self) -> bool:
        return _ALTERNATE in self._screen.mode

    @property
    def has_cursor(self) -> bool:
        return _HIDDEN_CURSOR in self._screen.mode

    def attributes(self) -> list[Any]:
        return termios.tcgetattr(self._slave)

    def children(self) -> list[psutil.Process]:
        try:
            return psutil.Process(self.process.pid).children(recursive=True)
        except psutil.NoSuchProcess:
            return []

    def view(self) -> psutil.Process:
        """The process that draws."""
        (found,) = self._views()
        return found

    def view_is_there(self) -> bool:
        return bool(self._views())

    def _views(self) -> list[psutil.Process]:
        return [each for each in self.children() if any("dagrl.tui.live" in word for word in each.cmdline())]

    def read(self, seconds: float = 0.0) -> None:
        end = time.monotonic() + seconds
        while select.select([self._master], [], [], max(0.0, end - time.monotonic()))[0]:
            content = os.read(self._master, 65536)
            self.raw += content
            self._stream.feed(content)

    def wait_for(self, seen: str | Callable[[], bool], seconds: float = 100.0) -> None:
        """Until the text is on the screen, or the condition holds."""
        end = time.monotonic() + seconds
        while time.monotonic() < end:
            self.read(0.02)
            if (seen in self.text) if isinstance(seen, str) else seen():
                return
            ended = self.process.poll()
            assert ended is None or isinstance(seen, str) is False, f"{seen!r} never came:\n{self.text}"
        raise AssertionError(f"{seen!r} did not come in {seconds} s:\n{self.text}")

    def wait(self, seconds: float = 100.0) -> int:
        """Until the command ends: its exit code."""
        end = time.monotonic() + seconds
        while self.process.poll() is None:
            assert time.monotonic() < end, f"it does not end:\n{self.text}"
            self.read(0.02)
        self.read(0.1)
        return self.process.returncode

    def press(self, keys: str) -> None:
        os.write(self._master, keys.encode())

    def resize(self, width: int, height: int) -> None:
        self._screen.resize(height, width)
        self._set_size(width, height)

    def _set_size(self, width: int, height: int) -> None:
        fcntl.ioctl(self._slave, termios.TIOCSWINSZ, struct.pack("HHHH", height, width, 0, 0))


def _own_terminal() -> None:
    fcntl.ioctl(0, termios.TIOCSCTTY, 0)
    signal.signal(signal.SIGINT, signal.default_int_handler)
