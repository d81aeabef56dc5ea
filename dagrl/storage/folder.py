"""A folder on any file system, whose files are written whole."""

from __future__ import annotations

import os
import tempfile
from collections.abc import Callable
from pathlib import Path
from typing import Any

from fsspec.implementations.local import LocalFileSystem

from dagrl.storage.local_copy import file_system


class Folder:
    """A folder, there or not; names are relative to it and may lead into folders below."""

    def __init__(self, url: str) -> None:
        self.url = url.rstrip("/") or url
        self.fs: Any
        self.fs, root = file_system(url)
        self._root = root.rstrip("/")

    @property
    def is_local(self) -> bool:
        """True on a local disk, where files can grow and be locked."""
        return isinstance(self.fs, LocalFileSystem)

    def path(self, name: str = "") -> str:
        """The path of a file in the file system."""
        return f"{self._root}/{name}" if name else self._root

    def below(self, name: str) -> Folder:
        """A folder in this one."""
        return Folder(f"{self.url}/{name}")

    def make(self) -> None:
        """Create the folder; object stores have none, so nothing happens there."""
        if self.is_local:
            os.makedirs(self._root, exist_ok=True)

    def names(self) -> list[str]:
        """The names in it, sorted; none where there is no such folder."""
        self.fs.invalidate_cache()
        try:
            listed = {str(path).strip("/") for path in self.fs.ls(self._root, detail=False)}
        except (FileNotFoundError, NotADirectoryError):
            return []
        # A file in the folder's place, and an object store's marker of the folder, are listed as themselves.
        return sorted(path.rsplit("/", 1)[-1] for path in listed - {self._root.strip("/")})

    def exists(self, name: str) -> bool:
        """True where there is a file or folder of that name."""
        self.fs.invalidate_cache()
        return bool(self.fs.exists(self.path(name)))

    def size(self, name: str) -> int:
        """Bytes of a file. Raises FileNotFoundError where there is none."""
        self.fs.invalidate_cache()
        return int(self.fs.info(self.path(name))["size"])

    def read(self, name: str, start: int = 0, end: int | None = None) -> bytes:
        """The content of a file, or bytes ``start`` to ``end`` of it. Raises FileNotFoundError where there is none."""
        if start == 0 and end is None:
            return self.fs.cat_file(self.path(name))
        return self.fs.cat_file(self.path(name), start=start, end=end)

    def write(self, name: str, data: bytes) -> None:
        """Write a file: it is there complete or not at all, also after a crash."""
        target = self.path(name)
        if not self.is_local:
            self.fs.pipe_file(target, data)
            return
        os.makedirs(os.path.dirname(target), exist_ok=True)
        aside = f"{target}.part"
        with open(aside, "wb") as file:
            file.write(data)
            file.flush()
            os.fsync(file.fileno())
        os.replace(aside, target)
        _sync_folder(os.path.dirname(target))

    def remove(self, name: str) -> None:
        """Remove a file, or a folder with all that is in it; nothing happens where there is none."""
        if self.exists(name):
            self.fs.rm(self.path(name), recursive=True)


def _sync_folder(path: str) -> None:
    """Have the names in a folder survive a power cut too."""
    opened = os.open(path, os.O_RDONLY)
    try:
        os.fsync(opened)
    finally:
        os.close(opened)


def write_folder(url: str, write: Callable[[Path], object]) -> None:
    """Have ``write`` make a folder on the local disk, and bring it to the URL where that is elsewhere.

    Its config.json comes last, so that what has one is complete.
    """
    target = Folder(url)
    if target.is_local:
        write(Path(target.path()))
        return
    with tempfile.TemporaryDirectory() as aside:
        made = Path(aside, "folder")
        write(made)
        files = [path for path in made.rglob("*") if path.is_file()]
        for file in sorted(files, key=lambda path: path.name == "config.json"):
            target.fs.put_file(str(file), target.path(file.relative_to(made).as_posix()))
