"""The live view of the command's run: the view has the terminal, and what this process writes goes into a file."""

from __future__ import annotations

import os
import signal
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

from dagrl.cli.console_log import ConsoleLog
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

    def __init__(self, info: RunInfo, on_breakpoint: Callable[[], None]) -> None:
        self._folder = Folder(info.folder)
        self._on_breakpoint = on_breakpoint
        self._is_kept = False
        self._console = ConsoleLog()
        terminal = self._console.start()
        try:
            self._feed = Feed(info, terminal)
        except BaseException:
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
        if self._folder.is_local:
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

    def why(self) -> str:
        """What became of a view that is no longer alive."""
        return self._feed.why()

    def close(self) -> None:
        """Give the terminal back; a console that no run folder keeps is shown there."""
        self._feed.close()
        self._console.stop()
        signal.signal(signal.SIGTSTP, self._before)
        sys.breakpointhook = self._hook
        if not self._is_kept:
            self._keep_elsewhere()

    def _keep_elsewhere(self) -> None:
        content = self._console.content()
        if not content:
            return
        if self._folder.is_local or not self._folder.names():
            os.write(2, content)
            return
        before = self._folder.read(CONSOLE) if self._folder.exists(CONSOLE) else b""
        self._folder.write(CONSOLE, before + content)

    def _stop(self, number: int, frame: Any) -> None:
        """Ctrl-Z: the view leaves the screen first, so that the shell's prompt does not land there."""
        del number, frame
        self._feed.wait_until_stopped(_STOPPING)
        stop_here()

    def _break(self, *arguments: Any, **more: Any) -> Any:
        """A debugger needs the terminal."""
        self._on_breakpoint()
        return self._hook(*arguments, **more)
