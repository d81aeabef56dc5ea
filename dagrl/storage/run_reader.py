"""The folder of a run, read by another process, also while the run goes on."""

from __future__ import annotations

import json
from typing import Any

from dagrl.errors import ConfigError, Problem
from dagrl.storage.folder import Folder
from dagrl.storage.follow import LineFollower
from dagrl.storage.run_lock import LOCK, is_held

_FIX = "give the folder of a run, as `dagrl run` prints it"


class RunReader:
    """What a run has left so far; ``events`` hands out its events as they come."""

    def __init__(self, url: str) -> None:
        """Find the run.

        Raises:
            ConfigError: when there is none, or the folder cannot be reached.
        """
        self._folder = Folder(url)
        names = _names(self._folder)
        if "plan.json" not in names or "config.json" not in names:
            raise _no_run(self._folder, names)
        self.url = self._folder.url
        self.plans: list[dict[str, Any]] = self._json("plan.json")
        self.config: dict[str, Any] = self._json("config.json")
        self.events = LineFollower(url, "events")

    def is_in_use(self) -> bool:
        """Whether the run lives, as far as can be told from here."""
        return is_held(self._folder)

    def _json(self, name: str) -> Any:
        try:
            return json.loads(self._folder.read(name))
        except ValueError as error:
            what = f"`{self._folder.url}/{name}` is not JSON: {error}."
            raise ConfigError([Problem(what, fix=_FIX)]) from error


def _names(folder: Folder) -> list[str]:
    try:
        return folder.names()
    # The file systems behind fsspec share no base class of their errors but this one.
    except Exception as error:
        what = f"the run folder `{folder.url}` cannot be reached: {type(error).__name__}: {error}.".splitlines()[0]
        raise ConfigError([Problem(what, fix="check the URL, the credentials and the connection")]) from error


def _no_run(folder: Folder, names: list[str]) -> ConfigError:
    if not names:
        return ConfigError([Problem(f"there is no run in `{folder.url}`: nothing is there.", fix=_FIX)])
    if names == [LOCK]:
        return ConfigError(
            [Problem(f"the run in `{folder.url}` has not begun yet.", fix="wait until its workers stand")]
        )
    missing = "plan.json" if "plan.json" not in names else "config.json"
    return ConfigError([Problem(f"`{folder.url}` holds no run: it has no `{missing}`.", fix=_FIX)])
