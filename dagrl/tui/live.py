"""``python -m dagrl.tui.live FD``: the process that draws a run live; `dagrl.tui.feed` starts it and tells it events.

It loads neither torch nor Ray, and restores the terminal also when the run is killed.
"""

from __future__ import annotations

import contextlib
import json
import os
import signal
import socket
import sys
import time

from rich.text import Text

from dagrl.executor.events import RunContinued, RunPaused, StopRequested, event_from_dict
from dagrl.tui.frame import frame
from dagrl.tui.run_info import RunInfo
from dagrl.tui.screen import Screen
from dagrl.tui.state import RunState
from dagrl.tui.viewer import Viewer
from dagrl.tui.wire import CONTINUE, ENTERED, LEAVE, PAUSE, STOP, LineReader


class Told:
    """A source whose events come over a socket from the run, this process's parent."""

    def __init__(self, connection: socket.socket) -> None:
        self._connection = connection
        self._parent = os.getppid()
        self._lines = LineReader(connection)
        self._state = RunState()
        self._is_paused = False
        self._asked_to_stop = False
        self.info = RunInfo.from_json(_first_line(connection))
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
        elif key in ("p", " "):
            self.say(CONTINUE if self._is_paused else PAUSE)

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
        event = event_from_dict(json.loads(line))
        if event is not None:
            self._state.apply(event)
            self._is_paused = isinstance(event, RunPaused) or (self._is_paused and not isinstance(event, RunContinued))


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
        os.write(1, f"dagrl: the run is gone: it was killed or crashed; go on with: {told.info.resume}\n".encode())


if __name__ == "__main__":
    main()
