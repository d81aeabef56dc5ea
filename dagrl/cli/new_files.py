"""Write new files: all of them or none, and nothing that is there is touched."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path

from dagrl.errors import ConfigError, Problem


def write_new(texts: Mapping[Path, str]) -> None:
    """Write each text to its file, and make the folders.

    Raises:
        ConfigError: when a file exists or cannot be written; then none is left.
    """
    _require_absent(texts)
    written: list[Path] = []
    try:
        for file, text in texts.items():
            file.parent.mkdir(parents=True, exist_ok=True)
            with file.open("x", encoding="utf-8") as opened:
                written.append(file)
                opened.write(text)
    except OSError as error:
        for file in written:
            file.unlink(missing_ok=True)
        raise _unwritable(error, next(iter(texts))) from error


def _require_absent(files: Mapping[Path, str]) -> None:
    try:
        there = [file for file in files if file.exists()]
    except OSError as error:
        raise _unwritable(error, next(iter(files))) from error
    if there:
        fix = "choose another name or --dir; nothing was written"
        raise ConfigError([Problem(f"`{file}` exists already.", fix=fix) for file in there])


def _unwritable(error: OSError, file: Path) -> ConfigError:
    reason = error.strerror or str(error)
    place = f"`{error.filename}`: {reason}" if error.filename else reason
    what = f"nothing can be written to `{file.parent}`: {place}."
    return ConfigError([Problem(what, fix="give a folder that can be made and written to: `--dir FOLDER`")])
