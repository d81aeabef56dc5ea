"""What tells one content of a file from the next, without reading it."""

from __future__ import annotations

import os
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from fsspec.implementations.local import LocalFileSystem

from dagrl.storage.local_copy import file_system

#: What file systems call a time of change or a checksum; each has some of them.
_MARKS = ("mtime", "modified", "last_modified", "LastModified", "updated", "created", "ETag", "etag", "blob_id", "CRC")


@dataclass(frozen=True)
class Stamp:
    """Size, and whatever else the file system says of a content; empty where it cannot be asked."""

    size: int | None = None
    marks: tuple[str, ...] = ()


@dataclass(frozen=True)
class WatchedFile:
    """A file and its stamp at one time, None where there was none; a later change of the working folder is no matter.

    A connection that fails says nothing about the file.
    """

    url: str
    fs: Any
    path: str
    stamp: Stamp | None

    def change(self) -> str | None:
        """What has become of the file since, None where it is the same or nobody can tell."""
        now = _stamp(self.fs, self.path)
        if Stamp() in (self.stamp, now) or self.stamp == now:
            return None
        if now is None:
            return "it is gone"
        if self.stamp is not None and self.stamp.size != now.size:
            return f"it had {self.stamp.size} bytes and has {now.size}"
        return "it was written again"


def watch(url: str) -> WatchedFile:
    """The file with its stamp of now.

    Raises:
        ConfigError: for a protocol that is not known, or whose package is not installed.
    """
    fs, path = file_system(url)
    return WatchedFile(url, fs, path, _stamp(fs, path))


def _stamp(fs: Any, path: str) -> Stamp | None:
    try:
        if isinstance(fs, LocalFileSystem):
            status = os.stat(path)
            return Stamp(status.st_size, (str(status.st_mtime_ns),))
        info = _info(fs, path)
    except (FileNotFoundError, NotADirectoryError):
        return None
    except OSError:
        return Stamp()
    return Stamp(info.get("size"), tuple(f"{name} {info[name]}" for name in _MARKS if info.get(name)))


def _info(fs: Any, path: str) -> Mapping[str, Any]:
    """What the file system says of a file now; every failure is an `OSError`."""
    try:
        fs.invalidate_cache(path)
        return fs.info(path)
    except OSError:
        raise
    # The file systems behind fsspec share no base class of their errors but this one.
    except Exception as error:
        raise OSError(str(error)) from error
