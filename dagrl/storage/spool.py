"""A temporary file without a name, so that it is gone when the process ends, however that happens."""

from __future__ import annotations

import tempfile
from collections.abc import Generator
from contextlib import contextmanager
from typing import Any, BinaryIO

from dagrl.errors import ConfigError, Problem


class Spool:
    """What is unpacked of the file at ``url``."""

    def __init__(self, url: str) -> None:
        self._url = url
        with self._room():
            self._file: Any = tempfile.TemporaryFile()  # noqa: SIM115 - the caller keeps it open

    def write(self, content: bytes) -> int:
        """Append; how many bytes.

        Raises:
            ConfigError: when the temporary folder is full.
        """
        with self._room():
            return self._file.write(content)

    def finish(self) -> BinaryIO:
        """The file, complete and at its beginning.

        Raises:
            ConfigError: when the temporary folder is full.
        """
        with self._room():
            self._file.seek(0)
        return self._file

    @contextmanager
    def _room(self) -> Generator[None]:
        try:
            yield
        except OSError as error:
            folder = tempfile.gettempdir()
            what = f"`{self._url}` cannot be unpacked to the temporary folder {folder}: {error.strerror or error}."
            fix = "make room there, or set TMPDIR to a folder that has some"
            raise ConfigError([Problem(what, fix=fix)]) from error
