"""What is wrong with rows of a file, gathered over one pass into one error."""

from __future__ import annotations

from collections.abc import Callable, Generator, Mapping
from contextlib import contextmanager
from typing import Any

from dagrl.errors import ConfigError, DataChangedError, Problem

#: Looks at one row in the first pass over a file; raises `RowFault` for one that cannot be used.
RowCheck = Callable[[Mapping[str, Any]], object]

_SHOWN = 5


class RowFault(Exception):
    """One row cannot be used; becomes part of a `ConfigError` that says which."""

    def __init__(self, what: str, fix: str) -> None:
        super().__init__(what)
        self.what = what
        self.fix = fix


class RowFaults:
    """Counts the faults of a file and keeps the first few."""

    def __init__(self, url: str) -> None:
        self._url = url
        self._problems: list[Problem] = []
        self._count = 0

    @contextmanager
    def at(self, place: str) -> Generator[None]:
        """Keep a `RowFault` that is raised inside as one of the row at ``place``."""
        try:
            yield
        except RowFault as fault:
            self._count += 1
            if self._count <= _SHOWN:
                self._problems.append(row_problem(self._url, place, fault))

    def raise_any(self) -> None:
        """Raise one `ConfigError` for all that were met."""
        if self._count > _SHOWN:
            what = f"`{self._url}` has {self._count} such rows; the first {_SHOWN} are listed."
            self._problems.append(Problem(what, fix="mend the others the same way"))
        if self._problems:
            raise ConfigError(self._problems, f"data `{self._url}`")


def row_problem(url: str, place: str, fault: RowFault) -> Problem:
    """The fault as a problem that names the file and the row."""
    return Problem(f"`{url}` {place}: {fault.what}.", fix=fault.fix)


def changed_error(url: str, what: str) -> DataChangedError:
    """The error of a file that has changed under a run that reads it."""
    said = f"data file `{url}` has changed since it was opened: {what}."
    return DataChangedError([Problem(said, fix="start again, and leave the file alone while a run reads it")])


def kind(value: Any) -> str:
    """What a message calls a value."""
    match value:
        case None:
            return "null"
        case str():
            return "text"
        case bool() | int() | float():
            return f"{value}"
        case list():
            return "a list"
        case Mapping():
            return "an object"
        case _:
            return f"a {type(value).__name__}"
