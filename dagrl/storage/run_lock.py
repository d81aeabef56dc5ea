"""Two runs never write to one folder: whoever writes holds its lock, and a process that dies holds it no more."""

from __future__ import annotations

import contextlib
import errno
import fcntl
import json
import os
import platform
from datetime import datetime
from pathlib import Path
from typing import Any

from dagrl.errors import ConfigError, Problem
from dagrl.storage.folder import Folder

LOCK = "lock.json"
_FIELDS = frozenset({"pid", "host", "started", "since"})
#: What this process holds on local disks: it would get the same lock twice, and reading a locked file lets it go.
_HELD: dict[str, dict[str, Any]] = {}


class RunLock:
    """Holds a run folder from its making until ``release``, or until this process ends, however it does.

    On a local disk the operating system keeps the lock. An object store has no locks: there a record names the
    process, and holds while that process lives; from another host nobody can tell, so it holds until removed.
    """

    def __init__(self, folder: Folder) -> None:
        """Take the lock.

        Raises:
            ConfigError: when a living run holds it.
        """
        self._folder = folder
        self._file: int | None = None
        if folder.is_local:
            self._path = os.path.realpath(folder.path(LOCK))
            self._file = _lock_file(folder, self._path)
        else:
            _take_record(folder)
        self._is_held = True

    def release(self) -> None:
        """Let the folder go, once."""
        if self._is_held:
            self._is_held = False
            self._folder.remove(LOCK)  # while it is locked: whoever locks it next sees that it has vanished
        if self._file is not None:
            os.close(self._file)
            del _HELD[self._path]
            self._file = None


def is_held(folder: Folder) -> bool:
    """Whether a run has the folder that lives, as far as can be told from here: one on another host does."""
    if folder.is_local and os.path.realpath(folder.path(LOCK)) in _HELD:
        return True  # not read: that would let the lock go
    return _lives(_holder(folder))


def _lock_file(folder: Folder, path: str) -> int:
    """The open, locked file; it vanishes when released, so one that has vanished meanwhile is no lock."""
    if path in _HELD:
        raise _refused(folder, _HELD[path])
    while True:
        file = os.open(path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o666)
        try:
            fcntl.lockf(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except OSError as error:
            os.close(file)
            if error.errno in (errno.EACCES, errno.EAGAIN):
                raise _refused(folder, _holder(folder)) from error
            what = f"the run folder `{folder.url}` cannot be locked: {error.strerror or error}."
            raise ConfigError([Problem(what, fix="give an `--out` on a disk that can lock files")]) from error
        if _is_still(path, file):
            break
        os.close(file)
    _HELD[path] = _record()
    os.ftruncate(file, 0)
    os.write(file, json.dumps(_HELD[path]).encode())
    return file


def _is_still(path: str, file: int) -> bool:
    with contextlib.suppress(FileNotFoundError):
        return os.path.samestat(os.stat(path), os.fstat(file))
    return False


def _take_record(folder: Folder) -> None:
    if folder.exists(LOCK):
        holder = _holder(folder)
        if _lives(holder):
            raise _refused(folder, holder)
        folder.remove(LOCK)
    try:
        folder.fs.pipe_file(folder.path(LOCK), json.dumps(_record()).encode(), mode="create")
    except FileExistsError as error:
        raise _refused(folder, _holder(folder)) from error


def _record() -> dict[str, Any]:
    since = datetime.now().astimezone().isoformat(timespec="seconds")
    return {"pid": os.getpid(), "host": platform.node(), "started": _started(os.getpid()), "since": since}


def _holder(folder: Folder) -> dict[str, Any]:
    """What the holder wrote; nothing where it has not come to that yet, or has just gone."""
    with contextlib.suppress(FileNotFoundError, ValueError):
        record: Any = json.loads(folder.read(LOCK))
        if isinstance(record, dict) and record.keys() >= _FIELDS:  # pyright: ignore[reportUnknownMemberType]
            return record  # pyright: ignore[reportUnknownVariableType]
    return {}


def _lives(holder: dict[str, Any]) -> bool:
    """Whether the process of a record may still be there."""
    if not holder:
        return False
    return holder["host"] != platform.node() or holder["started"] == _started(holder["pid"])


def _started(pid: int) -> str | None:
    """What tells a process from a later one with its number: the boot and the time in it; None where there is none."""
    with contextlib.suppress(FileNotFoundError, ProcessLookupError):
        if not Path("/proc/self").exists():  # not Linux: the number alone has to do
            os.kill(pid, 0)
            return "running"
        fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
        return f"{Path('/proc/sys/kernel/random/boot_id').read_text().strip()} {fields[19]}"
    return None


def _refused(folder: Folder, holder: dict[str, Any]) -> ConfigError:
    by = f" by process {holder['pid']} on {holder['host']}, since {holder['since']}" if holder else ""
    what = f"the run folder `{folder.url}` is in use{by}."
    fix = "wait for that run, or end it"
    if not folder.is_local and holder and holder["host"] != platform.node():
        fix += f"; if it is dead, remove `{folder.url}/{LOCK}`"
    return ConfigError([Problem(what, fix=fix)])
