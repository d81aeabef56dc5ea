"""Import a user's function, read its signature, and tell what it raised."""

from __future__ import annotations

import importlib
import importlib.util
import inspect
import sys
import traceback
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from dagrl.rewards.scores import BadResult
from dagrl.rewards.shapes import Parameters

_MESSAGE = 500
_HERE = str(Path(__file__).parent)


@dataclass(frozen=True)
class Source:
    """Where a function is: in a file, which is a module that ``paths`` lead to if ``module`` names one."""

    name: str
    file: str
    module: str | None = None
    paths: tuple[str, ...] = ()


@dataclass(frozen=True)
class Loaded:
    """What a function turned out to be; ``fault`` says why it could not be loaded."""

    parameters: Parameters = field(default_factory=lambda: Parameters((), frozenset()))
    is_async: bool = False
    fault: str = ""


def import_function(source: Source) -> Callable[..., Any]:
    """The function, its module imported."""
    module = _named_module(source.module, source.paths) if source.module else _file_module(source.file)
    function = vars(module).get(source.name) or getattr(module, source.name, None)
    if not callable(function):
        what = "has no" if function is None else f"has `{type(function).__name__}`, not a function, as"
        raise BadResult(f"`{source.module or source.file}` {what} `{source.name}` once it is imported")
    return function


def read_parameters(function: Callable[..., Any]) -> Parameters:
    """The parameters that can be passed by name."""
    parameters = inspect.signature(function).parameters.values()
    named = [one for one in parameters if one.kind in (one.POSITIONAL_OR_KEYWORD, one.KEYWORD_ONLY)]
    return Parameters(
        names=tuple(one.name for one in named),
        required=frozenset(one.name for one in named if one.default is one.empty),
        takes_any=any(one.kind is one.VAR_KEYWORD for one in parameters),
        positional_only=any(one.kind is one.POSITIONAL_ONLY for one in parameters),
        takes_many=any(one.kind is one.VAR_POSITIONAL for one in parameters),
    )


def is_async(function: Callable[..., Any]) -> bool:
    """True for ``async def``, also as a method of an object that is called."""
    return inspect.iscoroutinefunction(function) or inspect.iscoroutinefunction(getattr(function, "__call__", None))  # noqa: B004


def told(error: BaseException, place: str) -> tuple[str, str]:
    """The exception as text, and the last line of its traceback in the user's file."""
    if isinstance(error, BadResult):
        return str(error), ""
    try:
        message = str(error)[:_MESSAGE]
    except BaseException:  # noqa: BLE001 - the exception's own text may raise
        message = "(its message cannot be shown)"
    return f"{type(error).__name__}: {message}" if message else type(error).__name__, _last_line(error, place)


def _last_line(error: BaseException, place: str) -> str:
    frames = [frame for frame in traceback.extract_tb(error.__traceback__) if not frame.filename.startswith(_HERE)]
    own = [frame for frame in frames if frame.filename == place] or frames
    return f"{own[-1].filename}:{own[-1].lineno}: {own[-1].line}" if own else ""


def _named_module(module: str, paths: tuple[str, ...]) -> Any:
    sys.path += [path for path in paths if path not in sys.path]
    return importlib.import_module(module)


def _file_module(file: str) -> Any:
    """The file as a module, known to ``sys.modules`` before it runs; its folder goes last on the path."""
    path = Path(file)
    name = f"dagrl_reward_{path.stem}"
    spec = importlib.util.spec_from_file_location(name, path)
    if spec is None or spec.loader is None:
        raise ImportError(f"{file} is no Python file")
    module = importlib.util.module_from_spec(spec)
    sys.modules[name] = module
    if str(path.parent) not in sys.path:
        sys.path.append(str(path.parent))
    spec.loader.exec_module(module)
    return module
