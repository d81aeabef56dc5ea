"""A file of any file system as a local, uncompressed one that can be read at any place."""

from __future__ import annotations

import gzip
import zlib
from typing import IO, Any, BinaryIO

from fsspec.core import url_to_fs
from fsspec.implementations.local import LocalFileSystem

from dagrl.errors import ConfigError, Problem
from dagrl.storage.spool import Spool

_GZIP = b"\x1f\x8b"
_CHUNK = 1 << 20


def open_local(url: str) -> BinaryIO:
    """The file itself where it is local and plain, else a temporary copy; gzip is told by content, not by name.

    The copy has no name on the disk, so it is gone when the process ends, however that happens.

    Raises:
        ConfigError: when there is no such file, or it cannot be read or unpacked.
    """
    try:
        file = _opened(url)
        if file.peek(2)[:2] != _GZIP:
            return file
        with file, gzip.GzipFile(fileobj=file) as packed:
            return _copied(url, packed)
    except (EOFError, gzip.BadGzipFile, zlib.error) as error:
        raise _refused(f"`{url}` is a damaged gzip file: {error}.", "copy or pack it again") from error
    except FileNotFoundError as error:
        raise _refused(f"there is no file `{url}`.", "check the path") from error
    except OSError as error:
        raise _refused(f"`{url}` cannot be read: {error.strerror or error}.", "give a file that can be read") from error


def file_names(url: str) -> list[str]:
    """The names of the files in a folder, sorted; none where there is no such folder."""
    fs, path = file_system(url)
    try:
        if not fs.isdir(path):
            return []
        return sorted(str(name).rstrip("/").rsplit("/", 1)[-1] for name in fs.ls(path, detail=False))
    # The file systems behind fsspec share no base class of their errors but this one.
    except Exception as error:
        raise _unreachable(url, error) from error


def file_exists(url: str) -> bool:
    """True where there is a file or folder of that name."""
    fs, path = file_system(url)
    try:
        return bool(fs.exists(path))
    except Exception as error:
        raise _unreachable(url, error) from error


def file_system(url: str) -> tuple[Any, str]:
    """The file system of a URL, and the path in it.

    Raises:
        ConfigError: for a protocol that is not known, or whose package is not installed.
    """
    try:
        return url_to_fs(url)
    except (ValueError, ImportError) as error:
        raise _refused(f"`{url}` cannot be opened: {error}.", "check the protocol, or install its package") from error


def _opened(url: str) -> Any:
    fs, path = file_system(url)
    if isinstance(fs, LocalFileSystem):
        return open(path, "rb")
    try:
        with fs.open(path, "rb") as source:
            return _copied(url, source)
    except (OSError, ConfigError):
        raise
    except Exception as error:
        raise _unreachable(url, error) from error


def _copied(url: str, source: IO[bytes] | gzip.GzipFile) -> Any:
    spool = Spool(url)
    while chunk := source.read(_CHUNK):
        spool.write(chunk)
    return spool.finish()


def _unreachable(url: str, error: Exception) -> ConfigError:
    reason = f"{type(error).__name__}: {error}".strip().splitlines()[0]
    return _refused(f"`{url}` cannot be reached: {reason}.", "check the URL, the credentials and the connection")


def _refused(what: str, fix: str) -> ConfigError:
    return ConfigError([Problem(what, fix=fix)])
