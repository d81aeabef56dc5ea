"""What the run command shows: a live view, lines or only the end; and what the user asks of the run meanwhile."""

from __future__ import annotations

import signal
import time
from dataclasses import replace
from types import TracebackType
from typing import TYPE_CHECKING

from dagrl.cli.heard import Heard
from dagrl.cli.live import Live
from dagrl.cli.output import say, warn
from dagrl.cli.stopped import announce, cause
from dagrl.cli.ui_option import Mode
from dagrl.errors import UserError, counted
from dagrl.executor.events import (
    ConsoleWritten,
    Event,
    Listener,
    OpPrinted,
    RunContinued,
    RunFinished,
    RunPaused,
    StepStarted,
    StopRequested,
    Warned,
)
from dagrl.tui.lines import Lines
from dagrl.tui.run_info import RunInfo
from dagrl.tui.state import RunState
from dagrl.tui.summary import summary_text
from dagrl.tui.wire import CONTINUE, PAUSE, STOP

if TYPE_CHECKING:  # the engines take long to load, and the view is to be there before
    from dagrl.trainer.records import Start
    from dagrl.trainer.stopping import StopRequest

#: Characters of the console that go into one event.
_MOST_TEXT = 2000
#: Seconds between two looks at whether a paused run is to stop.
_PAUSE = 0.2


def start_line(training: str, seed: int, start: Start) -> str:
    """The first line of a run: what it is, where, and where it goes on."""
    line = f"{training}: {counted(start.steps, 'step')}, seed {seed}, run folder {start.folder}"
    if start.resumed_from is not None:
        return f"{line}, goes on after step {start.resumed_from}"
    return f"{line}, starts again: nothing in it was saved" if start.again else line


class RunUi:
    """Shows a run inside its ``with`` block, and has the user's wishes reach the loop; leaves a summary."""

    def __init__(self, mode: Mode, info: RunInfo, *, num_steps: int, seed: int) -> None:
        self.stop_asked_by: str | None = None
        self._mode = mode
        self._info = info
        self._seed = seed
        self._state = RunState()
        self._lines = Lines(info.training, num_steps)
        self._heard = Heard()
        self._live: Live | None = None
        self._stop: StopRequest | None = None
        self._in_loop = False
        self._words: list[str] = []
        self._shown_stop = self._told_stop = False

    def __enter__(self) -> RunUi:
        self._heard.start()
        if self._mode == "live":
            try:
                self._live = Live(self._info, self._leave_for_a_reader)
            except OSError as error:
                self._mode = "lines"
                warn(f"the live view cannot be started: {error}; the run goes on with lines")
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        # A second Ctrl-C waits until the terminal is as it was.
        before = signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGINT})
        try:
            self._heard.stop()
            if self._live is not None:
                self._live.close()
                self._live = None
            if self._mode != "quiet" and self._state.started_at is not None:
                # How to go on is told with what has ended the run, but for the user's mistakes.
                info = self._info if isinstance(error, UserError) else replace(self._info, resume="")
                say(summary_text(self._state, info))
        finally:
            signal.pthread_sigmask(signal.SIG_SETMASK, before)

    def hears(self, stop: StopRequest) -> StopRequest:
        """Show when this is asked to stop the run, and ask it where the user does so by a key."""
        self._stop = stop
        return stop

    def announce(self, number: int) -> None:
        """Say that the run stops after this step, and by what."""
        announce(number, self.stop_asked_by)

    def started(self, start: Start) -> None:
        """The run folder is there, and the workers stand."""
        if self._live is not None:
            self._live.folder_is_made()
        elif self._mode == "lines":
            say(start_line(self._info.training, self._seed, start))

    def listen(self, event: Event) -> None:
        """Show an event."""
        self._state.apply(event)
        self._in_loop = (self._in_loop or isinstance(event, StepStarted)) and not isinstance(event, RunFinished)
        shown = self._lines.lines(event)
        live = self._live  # another thread may take it away
        if live is not None:
            self._tell(live, event, shown)
        elif self._mode == "lines":
            for line in shown:
                say(line)

    def between_steps(self, emit: Listener) -> None:
        """Tell what was written and warned of, and do what the user has asked for."""
        self._in_loop = True
        now = time.time()
        for text in self._heard.take():
            emit(Warned(now, text))
        if self._live is not None and (text := self._live.new_text(_MOST_TEXT)):
            emit(ConsoleWritten(now, text))
        self._obey()
        if self._is_pause_asked() and not self._is_stopping() and self._state.step_done < self._state.steps:
            self._pause(emit)
        self._words.clear()
        if self._is_stopping() and not self._told_stop:
            self._told_stop = True
            emit(StopRequested(time.time(), self._by()))

    def _tell(self, live: Live, event: Event, shown: list[str]) -> None:
        live.tell(event)
        if isinstance(event, OpPrinted):  # into the console, where all that is printed is
            say("\n".join(shown))
        if self._is_stopping() and not self._shown_stop:
            self._shown_stop = True
            live.tell(StopRequested(time.time(), self._by()))
        self._obey()
        if not live.alive:
            self._go_on_with_lines(f"the live view is gone: {live.why()}; the run goes on")

    def _obey(self) -> None:
        """Take the user's words; a wish to stop is heard at once, in the middle of a step too."""
        if self._live is not None:
            self._words += self._live.words()
        if STOP in self._words and self._in_loop and self._stop is not None:
            self._words.remove(STOP)
            if self._stop.signal is None:
                self.stop_asked_by = "q"
                signal.raise_signal(signal.SIGINT)

    def _pause(self, emit: Listener) -> None:
        """Wait until the user lets the run go on, or asks it to stop, or the view is gone."""
        step = self._state.step_done + 1
        emit(RunPaused(time.time(), step))
        self._words.clear()
        while self._live is not None and self._live.alive and not self._is_stopping() and CONTINUE not in self._words:
            self._live.wait(_PAUSE)
            self._obey()
        emit(RunContinued(time.time(), step))

    def _is_pause_asked(self) -> bool:
        """By p, once or an odd number of times: until the run pauses, the second takes the first back."""
        return self._words.count(PAUSE) % 2 == 1

    def _is_stopping(self) -> bool:
        return self._stop is not None and self._stop.signal is not None

    def _by(self) -> str:
        assert self._stop is not None
        assert self._stop.signal is not None
        return self.stop_asked_by or cause(self._stop.signal)

    def _leave_for_a_reader(self) -> None:
        """A debugger, or who else reads from the terminal; what it has asked is shown there."""
        question = self._live.question() if self._live is not None else ""
        self._go_on_with_lines("the live view has left the terminal to the code that reads from it")
        print(question, end="", flush=True)

    def _go_on_with_lines(self, why: str) -> None:
        live, self._live = self._live, None
        if live is not None:
            self._mode = "lines"
            live.close()
            warn(why)
