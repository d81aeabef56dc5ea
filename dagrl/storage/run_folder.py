"""The folder of a run: small JSON files written whole, JSON lines that grow, checkpoints; on any file system."""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import Any

from fsspec.implementations.memory import MemoryFileSystem

from dagrl.errors import ConfigError, Problem
from dagrl.storage.folder import Folder
from dagrl.storage.json_lines import plain
from dagrl.storage.run_lock import LOCK, RunLock
from dagrl.storage.segments import LineWriter, drop_segments

CHECKPOINTS = "checkpoints"
PROFILE = "profile"
MODEL = "model"
#: What was written to the console of a run while the live view had the terminal.
CONSOLE = "console.log"
LINES = ("metrics", "events")
#: What a run writes beside these is hidden or ends in `.part`, and is left only by one that was killed.
_CONTENTS = frozenset({"config.json", "plan.json", CONSOLE, LOCK, CHECKPOINTS, MODEL, PROFILE, *LINES})


class RunFolder:
    """The folder of a run that starts or goes on; closing it writes what waits, and lets it go."""

    def __init__(self, url: str, *, resume: bool = False) -> None:
        """See what is there; a folder that a run left is locked at once, a new one when it is made.

        Raises:
            ConfigError: when a living run has it, when no run made it, and, without ``resume``, when it is not new.
        """
        self.url = url
        self._folder = _opened(url)
        self._lock: RunLock | None = None
        self._lines: dict[str, LineWriter] = {}
        found = _contents(self._folder)
        self.is_new = not found
        if found and not resume:
            raise _not_new(url)
        if found:
            _check_ours(url, found)
            self._lock = RunLock(self._folder)

    def make(self) -> None:
        """Create the folder, if it is not there, and lock it.

        Raises:
            ConfigError: when it cannot be made, or another run was faster.
        """
        if self._lock is None:
            self._lock = self._made()
            if self._folder.names() != [LOCK]:
                self._lock.release()
                raise _not_new(self.url)

    def _made(self) -> RunLock:
        try:
            self._folder.make()
            return RunLock(self._folder)
        except ConfigError:
            raise
        # The file systems behind fsspec share no base class of their errors but this one.
        except Exception as error:
            what = f"the run folder `{self.url}` cannot be made: {_reason(error)}."
            raise ConfigError([Problem(what, fix="give an `--out` that can be written")]) from error

    def begin(self, lines: Mapping[str, int]) -> None:
        """Forget what was written after a checkpoint, whose ``cut`` said ``lines``; all that was, without one."""
        for name in LINES:
            first = lines.get(name, 0)
            drop_segments(self._folder.below(name), first)
            self._lines[name] = LineWriter(self._folder.below(name), first)
        self._folder.remove(MODEL)
        for name in self._folder.names():
            if _is_left_over(name):
                self._folder.remove(name)

    def write_json(self, name: str, value: Any) -> None:
        """Write a value whole, as JSON of sorted keys; NaN and infinities become null."""
        text = json.dumps(plain(value), indent=2, sort_keys=True, allow_nan=False)
        self._folder.write(name, text.encode())

    def append(self, name: str, record: Mapping[str, Any]) -> None:
        """Add one line to ``metrics`` or ``events``."""
        self._lines[name].append(record)

    def flush(self) -> None:
        """Hand everything written so far to the file system."""
        for lines in self._lines.values():
            lines.flush()

    def cut(self) -> dict[str, int]:
        """Write every line, and say where the next ones will be: a checkpoint holds it for ``begin``."""
        return {name: lines.cut() for name, lines in self._lines.items()}

    def exists(self, name: str) -> bool:
        """True where the run has left a file or folder of that name."""
        return self._folder.exists(name)

    def below(self, name: str) -> str:
        """The URL of something in the folder."""
        return self._folder.below(name).url

    def close(self) -> None:
        """Write every line and let the folder go."""
        try:
            self.cut()
        finally:
            if self._lock is not None:
                self._lock.release()

    def __enter__(self) -> RunFolder:
        return self

    def __exit__(self, *exc: object) -> None:
        self.close()


def is_private(url: str) -> bool:
    """Whether nobody but this process sees what is written there."""
    return isinstance(Folder(url).fs, MemoryFileSystem)


def checkpoints_of(url: str) -> str:
    """Where the checkpoints of the run in that folder are."""
    return Folder(url).below(CHECKPOINTS).url


def contents(url: str) -> list[str]:
    """The names in a run folder, sorted."""
    return Folder(url).names()


def _not_new(url: str) -> ConfigError:
    what = f"the run folder `{url}` exists and is not empty."
    fix = "give another `--out`, move the old run away, or go on with it by `--resume auto`"
    return ConfigError([Problem(what, fix=fix)])


def _opened(url: str) -> Folder:
    try:
        return Folder(url)
    except ConfigError as error:
        problems = [Problem(f"`--out {url}`: {one.what}", fix=one.fix) for one in error.problems]
        raise ConfigError(problems) from error


def _contents(folder: Folder) -> list[str]:
    """The names in it; none where there is nothing yet."""
    try:
        if folder.fs.isfile(folder.path()):
            what = f"the run folder `{folder.url}` exists and is a file."
            raise ConfigError([Problem(what, fix="give another `--out`")])
        return folder.names()
    except ConfigError:
        raise
    # The file systems behind fsspec share no base class of their errors but this one.
    except Exception as error:
        what = f"the run folder `{folder.url}` cannot be reached: {_reason(error)}."
        raise ConfigError([Problem(what, fix="check the URL, the credentials and the connection")]) from error


def _reason(error: Exception) -> str:
    return f"{type(error).__name__}: {error}".splitlines()[0]


def _check_ours(url: str, names: list[str]) -> None:
    """See that a run made the folder; without its config.json, that nothing else is in it."""
    others = [name for name in names if name not in _CONTENTS and not _is_left_over(name)]
    if others and "config.json" not in names:
        what = f"the folder `{url}` holds `{others[0]}` and no `config.json`: no run has made it."
        raise ConfigError([Problem(what, fix="give another `--out`")])


def _is_left_over(name: str) -> bool:
    return name.endswith(".part") or name.startswith(f".{MODEL}.")
