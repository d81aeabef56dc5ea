"""Where in the user's files something was written."""

import inspect
from collections.abc import Callable
from pathlib import Path
from typing import Any

from dagrl.errors import Location

_PACKAGE = str(Path(__file__).resolve().parent.parent) + "/"


def caller_location() -> Location:
    """The line of the innermost caller outside dagrl."""
    frame = inspect.currentframe()
    while frame is not None and frame.f_back is not None and frame.f_code.co_filename.startswith(_PACKAGE):
        frame = frame.f_back
    if frame is None:
        return Location("<unknown>", 0)
    return Location(frame.f_code.co_filename, frame.f_lineno)


def function_location(function: Callable[..., Any]) -> Location:
    """The line on which ``function`` is defined."""
    code = inspect.unwrap(function).__code__
    return Location(code.co_filename, code.co_firstlineno)


def is_inside_package(file: str) -> bool:
    """True for a file of dagrl itself."""
    return file.startswith(_PACKAGE)
