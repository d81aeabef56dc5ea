"""A full screen on a terminal: only lines that changed are written, and the terminal is left as it was found."""

from __future__ import annotations

import contextlib
import os
import re
import select
import termios
import time
import tty
from collections.abc import Generator, Sequence

from rich.console import COLOR_SYSTEMS, Console
from rich.segment import Segment
from rich.text import Text

#: The alternate screen, cleared; no cursor, and no wrapping, so that a line that is too wide breaks nothing.
ENTER = "\x1b[?1049h\x1b[?25l\x1b[?7l\x1b[2J"
#: Everything back, also what a writer that was killed in the middle of a frame has left on.
#: The cursor is below the frame where there is no other screen.
LEAVE = "\x1b[?2026l\x1b[0m\x1b[?7h\x1b[?25h\x1b[999;1H\x1b[?1049l"
_BEGIN, _END = "\x1b[?2026h", "\x1b[?2026l"
#: Whoever makes the text sees to it too; here nothing can get past.
_CONTROLS = dict.fromkeys((*range(32), *range(127, 160)), "?")
#: A key that sends several characters is one key: Alt-Q is not q.
_KEY = re.compile(rb"\x1b\[[0-?]*[ -/]*[@-~]|\x1bO[ -~]|\x1b.|.", re.DOTALL)
_NAMED = {
    end.join((b"\x1b", code)): name
    for end in (b"[", b"O")
    for code, name in ((b"A", "up"), (b"B", "down"), (b"C", "right"), (b"D", "left"))
}
_FALLBACK_SIZE = (80, 24)
#: Seconds that a terminal may take for the last bytes; one that is stopped by Ctrl-S takes none.
_LAST_BYTES = 1.0

Attributes = list[int | list[bytes | int]]


class Screen:
    """Draws frames between ``enter`` and ``leave``; keys come unbuffered and are not shown, Ctrl-C and Ctrl-Z work.

    Writing never waits for the terminal: while ``is_busy``, what it has not taken yet goes first, by ``flush``.
    """

    def __init__(self, input_fd: int = 0, output_fd: int = 1) -> None:
        self.input_fd = input_fd
        self.output_fd = open_terminal(output_fd)
        self._console = Console(force_terminal=True, legacy_windows=False)
        self._colors = COLOR_SYSTEMS.get(self._console.color_system or "")
        self._before: Attributes = termios.tcgetattr(input_fd)
        self._ours: Attributes | None = None
        self._shown: list[object] = []
        self._pending = b""

    def enter(self) -> None:
        """Take the terminal."""
        if self._ours is None:
            with _reached():
                self._before = termios.tcgetattr(self.input_fd)
                tty.setcbreak(self.input_fd, termios.TCSANOW)
                self._ours = termios.tcgetattr(self.input_fd)
            self._write(ENTER)
            self._shown = []

    def leave(self) -> None:
        """Give the terminal back; attributes that others have set are theirs, unless they are of this same job."""
        if self._ours is None:
            return
        self._pending = b""
        with contextlib.suppress(OSError, EOFError, termios.error):
            self._write(LEAVE)
            write_within(self.output_fd, self._pending, _LAST_BYTES)
            if self._is_foreground() or termios.tcgetattr(self.input_fd) == self._ours:
                termios.tcsetattr(self.input_fd, termios.TCSANOW, self._before)
        self._ours, self._pending = None, b""

    def size(self) -> tuple[int, int]:
        """Columns and rows."""
        with _reached():
            width, height = os.get_terminal_size(self.output_fd)
        return (width, height) if width > 0 and height > 0 else _FALLBACK_SIZE

    def forget(self) -> None:
        """Have the next frame drawn whole, as after a change of size."""
        self._shown = []

    def draw(self, lines: Sequence[Text]) -> None:
        """Write what differs from the last frame, in one go."""
        shown: list[object] = [(line.plain, str(line.style), tuple(line.spans)) for line in lines]
        if shown == self._shown:
            return
        known = self._shown if len(self._shown) == len(shown) else None
        changed = [
            f"\x1b[{row};1H\x1b[0m\x1b[K{self._styled(line)}"
            for row, line in enumerate(lines, 1)
            if known is None or known[row - 1] != shown[row - 1]
        ]
        self._shown = shown
        self._write(_BEGIN + ("" if known is not None else "\x1b[0m\x1b[2J") + "".join(changed) + _END)

    @property
    def is_busy(self) -> bool:
        """Whether the terminal has not taken everything yet."""
        return bool(self._pending)

    def flush(self) -> None:
        """Hand over as much of what waits as the terminal takes. Raises EOFError when it is gone."""
        with _reached(), contextlib.suppress(BlockingIOError):
            self._pending = self._pending[os.write(self.output_fd, self._pending) :]

    def read_keys(self) -> list[str]:
        """The keys that wait, arrows by name. Raises EOFError when the terminal is gone."""
        try:
            data = os.read(self.input_fd, 1024)
        except OSError:
            if not self.is_ours():  # in the background nothing may be read
                return []
            data = b""
        if not data:
            raise EOFError("the terminal is gone")
        keys: list[bytes] = _KEY.findall(data)
        return [_NAMED[key] if key in _NAMED else key.decode("utf-8", "replace") for key in keys]

    def is_ours(self) -> bool:
        """Whether this process is in the foreground, or no shell decides that."""
        return self._is_foreground() is not False

    def _is_foreground(self) -> bool | None:
        try:
            return os.tcgetpgrp(self.input_fd) == os.getpgrp()
        except OSError:
            return None

    def _styled(self, line: Text) -> str:
        segments = line.render(self._console, end="")
        if not line.spans:  # rich leaves the line's own style to whoever prints it then
            segments = Segment.apply_style(segments, self._console.get_style(line.style))
        if self._console.no_color:
            segments = Segment.remove_color(segments)
        parts = [(text.translate(_CONTROLS), style) for text, style, _ in segments]
        return "".join(style.render(text, color_system=self._colors) if style else text for text, style in parts)

    def _write(self, text: str) -> None:
        self._pending += text.encode("utf-8", "replace")
        self.flush()


def write_within(fd: int, data: bytes, seconds: float) -> None:
    """Write to a descriptor that does not block, for so long at most."""
    end = time.monotonic() + seconds
    poll = select.poll()
    poll.register(fd, select.POLLOUT)
    while data and time.monotonic() < end:
        if poll.poll(max(0.0, end - time.monotonic()) * 1000):
            with contextlib.suppress(BlockingIOError):
                data = data[os.write(fd, data) :]


@contextlib.contextmanager
def _reached() -> Generator[None]:
    """Who closes a terminal has nobody look at it any more."""
    try:
        yield
    except BlockingIOError:
        raise
    except (OSError, termios.error) as error:
        raise EOFError("the terminal is gone") from error


def open_terminal(fd: int) -> int:
    """The terminal of a descriptor, opened once more: not to block there is a matter of the opening."""
    try:
        return os.open(os.ttyname(fd), os.O_WRONLY | os.O_NOCTTY | os.O_NONBLOCK | os.O_CLOEXEC)
    except OSError:  # in some containers it has no name
        return os.dup(fd)
