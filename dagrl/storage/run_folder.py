"""The folder of a run: small JSON files written whole, and JSON-lines files that grow."""

from __future__ import annotations

import json
import posixpath
from collections.abc import Mapping
from pathlib import Path
from typing import IO, Any

from fsspec.core import url_to_fs
from fsspec.implementations.local import LocalFileSystem

from dagrl.errors import ConfigError, Problem
from dagrl.storage.json_lines import json_line, plain


def check_new(url: str) -> None:
    """See that a run folder can be made there; nothing is written.

    Raises:
        ConfigError: when it already holds something, or is not on a local disk.
    """
    fs, root = _file_system(url)
    if fs.exists(root) and (not fs.isdir(root) or fs.ls(root)):
        what = f"the run folder `{url}` exists and is {'not empty' if fs.isdir(root) else 'a file'}."
        raise ConfigError([Problem(what, fix="give another `--out`, or move the old run away")])


class RunFolder:
    """A new folder for one run; closing it closes its files."""

    def __init__(self, url: str) -> None:
        """Create the folder.

        Raises:
            ConfigError: when it cannot be made, or already holds something.
        """
        check_new(url)
        self._fs, self._root = _file_system(url)
        self._lines: dict[str, IO[str]] = {}
        try:
            self._fs.makedirs(self._root, exist_ok=True)
        except OSError as error:
            what = f"the run folder `{url}` cannot be made: {error.strerror or error}."
            raise ConfigError([Problem(what, fix="give an `--out` that can be written")]) from error

    @property
    def path(self) -> Path:
        """The folder on the local disk."""
        return Path(self._root)

    def write_text(self, name: str, text: str) -> None:
        """Write a file whole: it is there complete or not at all."""
        target = posixpath.join(self._root, name)
        aside = f"{target}.part"
        with self._fs.open(aside, "w") as file:
            file.write(text)
        self._fs.mv(aside, target)

    def write_json(self, name: str, value: Any) -> None:
        """Write a value whole, as JSON of sorted keys; NaN and infinities become null."""
        self.write_text(name, json.dumps(plain(value), indent=2, sort_keys=True, allow_nan=False))

    def append(self, name: str, record: Mapping[str, Any]) -> None:
        """Add one line to a JSON-lines file."""
        if name not in self._lines:
            self._lines[name] = open(posixpath.join(self._root, name), "a", encoding="utf-8")  # noqa: SIM115 - kept open
        self._lines[name].write(json_line(record) + "\n")

    def flush(self) -> None:
        """Hand everything written so far to the file system."""
        for file in self._lines.values():
            file.flush()

    def close(self) -> None:
        """Flush and close every file."""
        for file in self._lines.values():
            file.close()
        self._lines.clear()

    def __enter__(self) -> RunFolder:
        return self

    def __exit__(self, *exc: object) -> None:
        self.close()


def _file_system(url: str) -> tuple[LocalFileSystem, str]:
    try:
        fs, root = url_to_fs(url)
    except (ValueError, ImportError) as error:
        raise ConfigError([Problem(f"`--out {url}`: {error}.", fix="give a local folder")]) from error
    if not isinstance(fs, LocalFileSystem):
        what = f"`--out {url}` is not on a local disk, and a run's files grow line by line."
        raise ConfigError([Problem(what, fix="give a local folder")])
    return fs, root
