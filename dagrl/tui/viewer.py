"""The loop of a view: takes what its source tells, hears keys and signals, draws when there is something to draw."""

from __future__ import annotations

import os
import select
import signal
import socket
from collections.abc import Callable, Generator
from contextlib import contextmanager
from typing import Any, Protocol

from rich.text import Text

from dagrl.tui.pace import LONGEST, Pace
from dagrl.tui.screen import Screen

#: The keys that turn the pages of the samples, and by how much.
_PAGES = {"s": 1, "right": 1, "down": 1, "left": -1, "up": -1}

#: Ctrl-L: somebody else has written to the terminal.
_REDRAW = "\x0c"
#: Without an answer to them they would leave the terminal as it is.
_ENDING = (signal.SIGTERM, signal.SIGHUP, signal.SIGINT, signal.SIGQUIT)

#: Seconds after which a source that cannot tell of news is asked for them.
_ASK = 0.3


class Source(Protocol):
    """Where a view has its picture from."""

    @property
    def fd(self) -> int | None:
        """What is readable when there is news; None where it has to be asked from time to time."""
        ...

    @property
    def is_over(self) -> bool:
        """Whether the view has nothing more to wait for."""
        ...

    def read(self) -> bool:
        """Take what has come; whether anything has changed."""
        ...

    def pressed(self, key: str) -> None:
        """Answer a key that is not the viewer's own."""
        ...

    def picture(self, width: int, height: int, page: int, *, with_help: bool) -> list[Text]:
        """The frame of now."""
        ...


class Viewer:
    """Shows a source on a screen until it is over, or until a signal, which this process does not ignore, ends it."""

    def __init__(self, screen: Screen, source: Source) -> None:
        self._screen = screen
        self._source = source
        self._pace = Pace()
        self._page = 0
        self._with_help = False
        self._has_news = self._is_urgent = True
        self._signals: set[int] = set()
        self._ended_by: int | None = None

    def run(self) -> int | None:
        """Draw until the end; the screen is left then, whatever happens. What signal was the end, if it was one."""
        with _heard(self._signals.add, *_ENDING, signal.SIGWINCH, signal.SIGCONT, signal.SIGTSTP) as wake:
            try:
                while self._ended_by is None and not self._source.is_over:
                    self._turn(wake)
            except EOFError:  # nobody sees it any more
                pass
            finally:
                self._screen.leave()
        return self._ended_by

    def _turn(self, wake: int) -> None:
        ready = self._wait(wake)
        if wake in ready:
            os.read(wake, 4096)
        self._answer_signals()
        if self._screen.is_busy:
            self._screen.flush()
        if self._screen.input_fd in ready:
            self._answer_keys()
        may_draw = self._pace.wait(is_urgent=self._is_urgent) == 0.0
        if may_draw or self._source.fd in ready:
            self._has_news |= self._source.read()
        if may_draw:
            self._draw()

    def _wait(self, wake: int) -> set[int]:
        """Sleep until something is to be done; the descriptors that are ready."""
        may_draw_in = self._pace.wait(is_urgent=self._is_urgent)
        poll = select.poll()
        poll.register(wake, select.POLLIN)
        if self._screen.is_ours():
            poll.register(self._screen.input_fd, select.POLLIN)
        if self._screen.is_busy:
            poll.register(self._screen.output_fd, select.POLLOUT)
        if self._source.fd is not None:  # its end is told at any time
            poll.register(self._source.fd, select.POLLIN if may_draw_in == 0.0 else 0)
        seconds = may_draw_in or (0.0 if self._has_news and not self._screen.is_busy else self._pace.until_idle())
        longest = LONGEST if self._source.fd is not None else _ASK
        return {fd for fd, _ in poll.poll(min(seconds, longest) * 1000 + 1)}

    def _draw(self) -> None:
        """Draw, if there is something new or time has passed, and there is somebody to see it."""
        if self._screen.is_busy or not self._screen.is_ours():
            self._pace.drawn()
            return
        if self._has_news or self._pace.until_idle() == 0.0:
            self._screen.enter()
            width, height = self._screen.size()
            self._screen.draw(self._source.picture(width, height, self._page, with_help=self._with_help))
            self._has_news = self._is_urgent = False
            self._pace.drawn()

    def _answer_keys(self) -> None:
        for key in self._screen.read_keys():
            if key in _PAGES:
                self._page += _PAGES[key]
            elif key == _REDRAW:
                self._screen.forget()
            elif key == "?":
                self._with_help = not self._with_help
            else:
                self._source.pressed(key)
            self._has_news = self._is_urgent = True

    def _answer_signals(self) -> None:
        heard: set[int] = set()
        while self._signals:  # one by one: another may come at any time, and none may be lost
            heard.add(self._signals.pop())
        self._ended_by = next((number for number in _ENDING if number in heard), None)
        if signal.SIGTSTP in heard:
            self._screen.leave()
            stop_here()
            heard.add(signal.SIGCONT)
        if heard:
            self._screen.forget()
            self._has_news = self._is_urgent = True


def stop_here() -> None:
    """Stop this process as Ctrl-Z does one that has no answer of its own; returns when it is continued."""
    before = signal.signal(signal.SIGTSTP, signal.SIG_DFL)
    os.kill(os.getpid(), signal.SIGTSTP)
    signal.signal(signal.SIGTSTP, before)


@contextmanager
def _heard(add: Callable[[int], None], *numbers: int) -> Generator[int]:
    """Have signals collected inside, but for ignored ones; what is yielded is readable when one has come."""
    wake, ring = socket.socketpair()
    wake.setblocking(False)
    ring.setblocking(False)

    def hear(number: int, frame: Any) -> None:
        del frame
        add(number)

    heard = [number for number in numbers if signal.getsignal(number) is not signal.SIG_IGN]
    before = {number: signal.signal(number, hear) for number in heard}
    woken = signal.set_wakeup_fd(ring.fileno(), warn_on_full_buffer=False)
    try:
        yield wake.fileno()
    finally:
        signal.set_wakeup_fd(woken)
        for number, handler in before.items():
            signal.signal(number, handler)
        wake.close()
        ring.close()
