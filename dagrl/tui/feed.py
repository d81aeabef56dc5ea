"""The run's side of its live view: starts the process that draws, tells it events and hears what the user wants.

Nothing here ever waits for the view: one that does not keep up, or that dies, is let go, and the terminal restored.
"""

from __future__ import annotations

import contextlib
import os
import select
import signal
import socket
import subprocess
import sys
import termios
import threading
import time
from collections.abc import Generator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from dagrl.executor.events import Event
from dagrl.storage.json_lines import json_line
from dagrl.tui.run_info import RunInfo
from dagrl.tui.screen import LEAVE as LEAVE_SCREEN
from dagrl.tui.screen import open_terminal, write_within
from dagrl.tui.wire import ENTERED, LEAVE, LineReader

#: Bytes that may wait for the view before it is let go.
MOST_BYTES = 32 << 20
#: Seconds that the view has to leave by itself.
_LEAVING = 2.0
#: The view has no answer to these while it starts, and would die of them.
_HELD_BACK = frozenset({signal.SIGINT, signal.SIGQUIT, signal.SIGTSTP})
_ROOT = str(Path(__file__).resolve().parent.parent.parent)
# Not `-m`: that would look for dagrl, and for what it imports, in the folder that the user is in.
_CODE = f"import sys; sys.path.append({_ROOT!r}); from dagrl.tui.live import main; main()"


class Feed:
    """A view of this run on the terminal, from ``start`` until ``close`` or until it is lost; then it is not ``alive``.

    ``terminal`` is the descriptor of the screen, ``keys`` that of the keyboard.
    """

    def __init__(self, info: RunInfo, terminal: int, keys: int = 0) -> None:
        """Start the view.

        Raises:
            OSError: when it cannot be started.
        """
        self._terminal, self._keys = terminal, keys
        self._before = _attributes(keys)
        self._has_terminal = False
        self._words: list[str] = []
        self._socket, theirs = socket.socketpair()
        with theirs, _held_back():
            self._process = subprocess.Popen(
                [sys.executable, "-P", "-c", _CODE, str(theirs.fileno())],
                pass_fds=[theirs.fileno()],
                stdin=keys,
                stdout=terminal,
            )
        self._socket.setblocking(False)
        self._lines = LineReader(self._socket)
        self._backlog = bytearray()
        self._lock = threading.RLock()  # a node may tell of its progress from a thread of its own
        self.alive = True
        self._send(info.to_json().encode())

    def tell(self, event: Event) -> None:
        """Show an event; without waiting."""
        self._send(json_line(event.to_dict()).encode())

    def words(self) -> list[str]:
        """What the user has asked for since the last time."""
        self._hear()
        said, self._words = self._words, []
        return said

    def wait(self, seconds: float) -> None:
        """Until the user asks for something, the view dies, or the time is over."""
        self._push()
        if self.alive:
            poll = select.poll()
            poll.register(self._socket, select.POLLIN)
            poll.poll(seconds * 1000)
            self._hear()

    def close(self) -> None:
        """Have the view leave; the terminal is as it was."""
        if not self.alive:
            return
        self._socket.settimeout(_LEAVING)
        with contextlib.suppress(OSError):
            self._socket.sendall(self._backlog + LEAVE + b"\n")
            self._socket.shutdown(socket.SHUT_RDWR)  # its end is heard at once, a line when the next frame is due
        self._end(_LEAVING)

    def why(self) -> str:
        """What became of a view that is no longer alive."""
        code = self._process.returncode
        if code is None or code == 0:
            return "it has ended"
        return f"it was ended by {_signal_name(-code)}" if code < 0 else f"it failed with exit code {code}"

    def wait_until_stopped(self, seconds: float) -> None:
        """Until Ctrl-Z has stopped the view, which leaves the screen before, or the time is over."""
        end = time.monotonic() + seconds
        while self.alive and time.monotonic() < end:
            with contextlib.suppress(ChildProcessError):
                if os.waitid(os.P_PID, self._process.pid, os.WSTOPPED | os.WNOHANG | os.WNOWAIT) is not None:
                    return
            time.sleep(0.01)

    def _send(self, line: bytes) -> None:
        with self._lock:
            if not self.alive:
                return
            self._backlog += line + b"\n"
            self._push()
            if len(self._backlog) > MOST_BYTES:
                self._end(0.0)

    def _push(self) -> None:
        try:
            while self._backlog and self.alive:
                del self._backlog[: self._socket.send(self._backlog)]
        except BlockingIOError:
            pass
        except OSError:
            self._end(_LEAVING)

    def _hear(self) -> None:
        with self._lock:
            if self.alive:
                self._listen()
                if self._lines.is_over:
                    self._end(_LEAVING)

    def _listen(self) -> None:
        for line in self._lines.lines():
            word = line.decode()
            if word == ENTERED:
                self._has_terminal = True
            else:
                self._words.append(word)

    def _end(self, seconds: float) -> None:
        """Wait for the view to end, or end it; restore the terminal where it has not done so."""
        self.alive = False
        self._listen()
        self._socket.close()
        try:
            self._process.wait(seconds)
        except subprocess.TimeoutExpired:
            self._process.kill()
            self._process.wait()
        if self._process.returncode != 0 and self._has_terminal:
            restore(self._terminal, self._keys, self._before)


def _attributes(terminal: int) -> Any:
    try:
        return termios.tcgetattr(terminal)
    except termios.error as error:
        raise OSError(*error.args) from error


def _signal_name(number: int) -> str:
    """Not each signal that there is has a name."""
    try:
        return signal.Signals(number).name
    except ValueError:
        return f"signal {number}"


def restore(terminal: int, keys: int, attributes: Any) -> None:
    """Give a terminal back that a view has not left; one that is stopped by Ctrl-S is not waited for."""
    with contextlib.suppress(OSError, termios.error), _background_may_write():
        termios.tcsetattr(keys, termios.TCSANOW, attributes)
        opened = open_terminal(terminal)
        try:
            write_within(opened, LEAVE_SCREEN.encode(), 0.5)
        finally:
            os.close(opened)


@contextmanager
def _background_may_write() -> Generator[None]:
    """A process in the background would be stopped for setting attributes."""
    before = signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGTTOU})
    try:
        yield
    finally:
        signal.pthread_sigmask(signal.SIG_SETMASK, before)


@contextmanager
def _held_back() -> Generator[None]:
    """Keep signals waiting, here and in a process that is started meanwhile."""
    before = signal.pthread_sigmask(signal.SIG_BLOCK, _HELD_BACK)
    try:
        yield
    finally:
        signal.pthread_sigmask(signal.SIG_SETMASK, before)
