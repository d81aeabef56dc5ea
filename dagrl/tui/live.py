"""``python -m dagrl.tui.live FD``: the process that draws a run live; `dagrl.tui.feed` starts it and tells it events.

It loads neither torch nor Ray, and restores the terminal also when the run is killed.
"""

from __future__ import annotations

import contextlib
import os
import signal
import socket
import sys
import time
from dataclasses import replace

from rich.text import Text

from dagrl.executor.events import StopRequested
from dagrl.tui.event_line import read_event
from dagrl.tui.frame import frame
from dagrl.tui.run_info import RunInfo
from dagrl.tui.screen import Screen, write_within
from dagrl.tui.state import RunState
from dagrl.tui.text import safe_in_full
from dagrl.tui.viewer import Viewer
from dagrl.tui.wire import CONTINUE, ENTERED, LEAVE, PAUSE, STOP, LineReader

#: Seconds that a terminal may take for the last words; one that is stopped by Ctrl-S takes none.
_LAST_WORDS = 1.0


class Told:
    """A source whose events come over a socket from the run, this process's parent."""

    def __init__(self, connection: socket.socket) -> None:
        self._connection = connection
        self._parent = os.getppid()
        self._lines = LineReader(connection)
        self._state = RunState()
        self._asked_to_stop = False
        self.info = replace(RunInfo.from_json(_first_line(connection)), opened_at=time.time())
        connection.setblocking(False)
        self.was_dismissed = False

    @property
    def fd(self) -> int:
        """The socket."""
        return self._connection.fileno()

    @property
    def is_over(self) -> bool:
        """Whether the run has ended or sent this view away."""
        return self.was_dismissed or self._lines.is_over or os.getppid() != self._parent

    def read(self) -> bool:
        """Take the events that have come."""
        lines = self._lines.lines()
        for line in lines:
            self._take(line)
        return bool(lines)

    def pressed(self, key: str) -> None:
        """Tell the run of q and p."""
        if key == "q" and not self._asked_to_stop:
            self._asked_to_stop = True
            self.say(STOP)
            self._state.apply(StopRequested(time.time(), "q"))
        elif key in ("p", " ") and self._state.outcome is None:
            self.say(CONTINUE if self._state.paused else PAUSE)
            self._state.pause_asked = not self._state.paused and not self._state.pause_asked

    def say(self, word: str) -> None:
        """Tell the run; one that does not listen any more is noticed elsewhere."""
        with contextlib.suppress(OSError):
            self._connection.send(f"{word}\n".encode())

    def picture(self, width: int, height: int, page: int, *, with_help: bool) -> list[Text]:
        """The frame of now."""
        return frame(self._state, self.info, width, height, time.time(), keys=with_help, sample_page=page)

    def _take(self, line: bytes) -> None:
        if line == LEAVE:
            self.was_dismissed = True
            return
        event = read_event(line)  # half of one, where the run was interrupted while it told it
        if event is not None:
            self._state.apply(event)


def _first_line(connection: socket.socket) -> str:
    """The line that the run sends before anything else; byte by byte, so that nothing after it is taken."""
    line = bytearray()
    while not line.endswith(b"\n"):
        byte = connection.recv(1)
        if not byte:
            raise SystemExit(0)
        line += byte
    return line.decode()


def main() -> None:
    """Show the run that the socket of the command line's number tells of."""
    for number in (signal.SIGINT, signal.SIGQUIT, signal.SIGTTOU, signal.SIGTTIN):
        signal.signal(number, signal.SIG_IGN)
    told = Told(socket.socket(fileno=int(sys.argv[1])))
    screen = Screen()
    told.say(ENTERED)
    viewer = Viewer(screen, told)
    # The run blocks these while it starts this process, which has no answer to them before now.
    signal.pthread_sigmask(signal.SIG_SETMASK, set())
    viewer.run()
    if told.is_over and not told.was_dismissed:
        last = f"dagrl: the run is gone: it was killed or crashed; go on with: {safe_in_full(told.info.resume)}\n"
        with contextlib.suppress(OSError):  # as may be the terminal
            write_within(screen.output_fd, last.encode(), _LAST_WORDS)


if __name__ == "__main__":
    main()
