"""The folder of a run, read by another process, also while the run goes on."""

from __future__ import annotations

import json
from collections.abc import Generator, Iterator
from contextlib import contextmanager
from typing import Any

from dagrl.errors import ConfigError, Problem
from dagrl.storage.folder import Folder
from dagrl.storage.follow import LineFollower
from dagrl.storage.run_lock import LOCK, is_held

_PLAN, _CONFIG = "plan.json", "config.json"
_FIX = "give the folder of a run, as `dagrl run` prints it"


class RunReader:
    """What a run has left so far; ``new_lines`` hands out its events as they come.

    Whatever it is asked, it raises ConfigError when the folder cannot be reached.
    """

    def __init__(self, url: str) -> None:
        """Find the run.

        Raises:
            ConfigError: when there is none, or it is damaged.
        """
        self._folder = Folder(url)
        self.url = self._folder.url
        with self._reached():
            names = self._folder.names()
        if _PLAN not in names or _CONFIG not in names:
            raise _no_run(self._folder, names)
        self.plans: Any = self._json(_PLAN)
        self._events = LineFollower(url, "events")

    @property
    def is_local(self) -> bool:
        """True on a local disk, where looking costs nothing."""
        return self._events.is_local

    def new_lines(self) -> Iterator[bytes]:
        """The lines of events since the last time."""
        with self._reached():
            yield from self._events.new_lines()

    def all_lines(self) -> Iterator[bytes]:
        """All lines of events so far."""
        self._events.restart()
        return self.new_lines()

    def is_replaced(self) -> bool:
        """Whether lines that were handed out are no longer there: take ``all_lines``."""
        with self._reached():
            return self._events.is_replaced()

    def is_in_use(self) -> bool:
        """Whether the run lives, as far as can be told from here."""
        with self._reached():
            return is_held(self._folder)

    def _json(self, name: str) -> Any:
        with self._reached():
            content = self._folder.read(name)
        try:
            return json.loads(content)
        except (ValueError, RecursionError) as error:
            raise ConfigError([Problem(f"`{self.url}/{name}` is not JSON: {error}.", fix=_FIX)]) from error

    @contextmanager
    def _reached(self) -> Generator[None]:
        try:
            yield
        # The file systems behind fsspec share no base class of their errors but this one.
        except Exception as error:
            url = self._folder.url
            what = f"the run folder `{url}` cannot be reached: {type(error).__name__}: {error}.".splitlines()[0]
            raise ConfigError([Problem(what, fix="check the URL, the credentials and the connection")]) from error


def _no_run(folder: Folder, names: list[str]) -> ConfigError:
    if not names:
        return ConfigError([Problem(f"there is no run in `{folder.url}`: nothing is there.", fix=_FIX)])
    if names == [LOCK]:
        return ConfigError(
            [Problem(f"the run in `{folder.url}` has not begun yet.", fix="wait until its workers stand")]
        )
    missing = _PLAN if _PLAN not in names else _CONFIG
    return ConfigError([Problem(f"`{folder.url}` holds no run: it has no `{missing}`.", fix=_FIX)])
