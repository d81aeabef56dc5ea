"""Where in the user's files something was written."""

import inspect
from collections.abc import Callable
from pathlib import Path
from types import FrameType
from typing import Any

from dagrl.errors import Location

_PACKAGE = str(Path(__file__).resolve().parent.parent) + "/"
_NAME = __name__.partition(".")[0]


def caller_location() -> Location:
    """The line of the innermost caller outside dagrl.

    A frame belongs to the module of its globals: a dataclass's generated ``__init__`` has no file of its own.
    """
    frame = inspect.currentframe()
    while frame is not None and frame.f_back is not None and _is_ours(frame):
        frame = frame.f_back
    if frame is None:
        return Location("<unknown>", 0)
    return Location(frame.f_code.co_filename, frame.f_lineno)


def _is_ours(frame: FrameType) -> bool:
    return str(frame.f_globals.get("__name__")).partition(".")[0] == _NAME


def function_location(function: Callable[..., Any]) -> Location:
    """The line on which ``function`` is defined."""
    code = inspect.unwrap(function).__code__
    return Location(code.co_filename, code.co_firstlineno)


def is_inside_package(file: str) -> bool:
    """True for a file of dagrl itself."""
    return file.startswith(_PACKAGE)


def by_name(function: Callable[..., Any], name: str) -> str | None:
    """What pickle calls the node or loss that is made of a function, None where other processes may not find it.

    dagrl's own are found everywhere; a user's file is none that another process could import, so it travels whole.
    """
    return name if is_inside_package(function.__code__.co_filename) else None
