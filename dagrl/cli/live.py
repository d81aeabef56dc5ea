"""The live view of the command's run: the view has the terminal, and what this process writes goes into a file."""

from __future__ import annotations

import contextlib
import os
import signal
import sys
import threading
from collections.abc import Callable
from pathlib import Path
from typing import Any

from dagrl.cli.console_log import ConsoleLog
from dagrl.cli.keyboard import Keyboard
from dagrl.executor.events import Event
from dagrl.storage.folder import Folder
from dagrl.storage.run_folder import CONSOLE
from dagrl.tui.feed import Feed
from dagrl.tui.run_info import RunInfo
from dagrl.tui.viewer import stop_here

#: Seconds that the view may take to leave the screen before Ctrl-Z stops the run too.
_STOPPING = 0.5


class Live:
    """Holds the terminal from its making until ``close``, or until the view is lost: then it is not ``alive``."""

    def __init__(self, info: RunInfo, on_reader: Callable[[], None]) -> None:
        """Start the view; ``on_reader`` is called when somebody needs the keys, and is to close this.

        Raises:
            OSError: when it cannot be started.
        """
        self._folder = Folder(info.folder)
        self._on_reader = on_reader
        self._is_made = self._is_kept = False
        self._console = ConsoleLog()
        self._keyboard = Keyboard(on_reader)
        terminal = self._console.start()
        try:
            self._feed = Feed(info, terminal, self._keyboard.start())
        except BaseException:
            self._keyboard.stop()
            self._console.stop()
            raise
        self._before = signal.signal(signal.SIGTSTP, self._stop)
        self._hook = sys.breakpointhook
        sys.breakpointhook = self._break

    @property
    def alive(self) -> bool:
        """Whether the view is there."""
        return self._feed.alive

    def folder_is_made(self) -> None:
        """Keep the console in the run folder; elsewhere than on a local disk that happens at the end."""
        self._is_made = True
        if self._folder.is_local:
            with contextlib.suppress(OSError):  # it is shown at the end then
                self._console.keep_in(Path(self._folder.path()))
                self._is_kept = True

    def tell(self, event: Event) -> None:
        """Show an event."""
        self._feed.tell(event)

    def words(self) -> list[str]:
        """What the user has asked for since the last time."""
        return self._feed.words()

    def wait(self, seconds: float) -> None:
        """Until the user asks for something, the view dies, or the time is over."""
        self._feed.wait(seconds)

    def new_text(self, most: int) -> str:
        """The end of what was written to the console since the last time."""
        return self._console.new_text(most)

    def question(self) -> str:
        """The line of the console that is not over: who reads has asked for something there."""
        return self._console.open_line()

    def why(self) -> str:
        """What became of a view that is no longer alive, which may have said why on the console."""
        return f"{self._feed.why()} ({CONSOLE} may say why)" if self._is_kept else self._feed.why()

    def close(self) -> None:
        """Give the terminal back; a console that no run folder keeps is shown there."""
        self._feed.close()
        self._keyboard.stop()
        self._console.stop()
        sys.breakpointhook = self._hook
        if threading.current_thread() is threading.main_thread():  # no other may; the answer does no harm
            signal.signal(signal.SIGTSTP, self._before)
        if not self._is_kept:
            self._keep_elsewhere(self._console.content())

    def _keep_elsewhere(self, content: bytes) -> None:
        """In the run folder, if this run has one that can be reached; else on the terminal."""
        if content and not self._is_in_folder(content):
            with contextlib.suppress(OSError):
                os.write(2, content)

    def _is_in_folder(self, content: bytes) -> bool:
        if self._folder.is_local or not self._is_made:  # a folder that was refused is another run's
            return False
        try:
            before = self._folder.read(CONSOLE) if self._folder.exists(CONSOLE) else b""
            self._folder.write(CONSOLE, before + content)
        # The file systems behind fsspec share no base class of their errors but this one.
        except Exception:  # noqa: BLE001
            return False
        return True

    def _stop(self, number: int, frame: Any) -> None:
        """Ctrl-Z: the view leaves the screen first, so that the shell's prompt does not land there."""
        del number, frame
        self._feed.wait_until_stopped(_STOPPING)
        stop_here()

    def _break(self, *arguments: Any, **more: Any) -> Any:
        """A debugger needs the terminal."""
        self._on_reader()
        return self._hook(*arguments, **more)
