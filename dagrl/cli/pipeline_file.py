"""Load a pipeline file and build its pipelines; what goes wrong in it becomes one message with its line."""

from __future__ import annotations

import dataclasses
import importlib.util
import inspect
import re
import sys
import traceback
from collections.abc import Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from types import ModuleType
from typing import Any

from dagrl.cli.beside import find_beside, goes_first, imports_past_siblings, namesake_beside
from dagrl.cli.config import make_config
from dagrl.cli.published import Broken, file_of, published_names, published_pipeline
from dagrl.compiler.check import problems_so_far
from dagrl.errors import ContractError, Location, PipelineFileError, Problem, UserError
from dagrl.graph.options import nearest
from dagrl.graph.pipeline import Pipeline, recorded_pipelines
from dagrl.graph.source import is_inside_package

#: Lines of the user's that led to an error, innermost first.
_SHOWN_FRAMES = 4
#: The shipped pipeline that the other shipped ones import.
_VARIED = "grpo"
_MISSING_NAME = re.compile(
    r"cannot import name '(?P<name>\w+)' from (?P<circle>partially initialized module )?'(?P<module>[\w.]+)'"
)


@dataclass(frozen=True)
class LoadedPipelines:
    """A pipeline file, its configuration and what its ``build`` returned: the step first."""

    file: Path
    config: Any
    pipelines: tuple[Pipeline, ...]


def load_pipelines(path: str, values: Mapping[str, str] | None = None) -> LoadedPipelines:
    """Run the file, make its ``Config`` from defaults and ``values``, and call its ``build``.

    Raises:
        PipelineFileError, ConfigError: with every problem that was met, at its line.
    """
    file, source, module = load_file(path)
    config_class, build = _parts(module, file)
    config = _config(config_class, values or {}, file, source)
    with recorded_pipelines() as opened:
        try:
            built = build(config)
        except (Exception, SystemExit) as error:
            raise PipelineFileError([*problems_so_far(opened), *_problems_of(error, file)], _subject(file)) from error
    return LoadedPipelines(file, config, _checked(built, file, build))


def load_file(path: str) -> tuple[Path, str, ModuleType]:
    """Run a user's file; where it is, its text and the module it became.

    Raises:
        PipelineFileError: when there is none, or it cannot be read or run.
    """
    file = Path(path).resolve()
    if not file.is_file():
        module = _published(path)
        return file_of(module), _read(file_of(module)), module
    source = _read(file)
    return file, source, _execute(file, source)


def _published(name: str) -> ModuleType:
    """The module of the pipeline that an installed package publishes under that name.

    Raises:
        PipelineFileError: when there is none.
    """
    found = published_pipeline(name)
    if isinstance(found, Broken):
        raise PipelineFileError([Problem(f"`{name}`, published by {found.origin}, is broken: {found.why}.")])
    if found is None or found.pipeline is None:
        names = ", ".join(f"`{each}`" for each in published_names())
        known = f", or the name of a published one: {names}" if names else ""
        fix = f"give the path of a pipeline file, e.g. pipelines/grpo.py{known}"
        raise PipelineFileError([Problem(f"there is no file `{name}`.", fix=fix)])
    return found.pipeline


def _config(config_class: type, values: Mapping[str, str], file: Path, source: str) -> Any:
    try:
        return make_config(config_class, values, str(file), source)
    except UserError:
        raise
    except Exception as error:
        raise PipelineFileError(_problems_of(error, file), _subject(file)) from error


def _read(file: Path) -> str:
    try:
        return file.read_text(encoding="utf-8-sig")
    except (OSError, UnicodeDecodeError) as error:
        raise PipelineFileError([Problem(f"`{file.name}` cannot be read: {error}.")], _subject(file)) from error


def _subject(file: Path) -> str:
    return f"`{file.name}`"


def _execute(file: Path, source: str) -> ModuleType:
    """The file as a module of its own name, known to ``sys.modules`` before it runs."""
    name = f"dagrl_pipeline_{file.stem}"
    spec = importlib.util.spec_from_file_location(name, file)
    if spec is None or spec.loader is None:
        what = f"`{file.name}` is no Python file."
        raise PipelineFileError([Problem(what, fix="give a .py file")], _subject(file))
    module = importlib.util.module_from_spec(spec)
    sys.modules[name] = module
    find_beside(file)
    problems = list(imports_past_siblings(file, source))
    if problems:
        raise PipelineFileError(problems, _subject(file))
    try:
        spec.loader.exec_module(module)
    except (Exception, SystemExit) as error:
        raise PipelineFileError(_problems_of(error, file), _subject(file)) from error
    return module


def _problems_of(error: BaseException, file: Path) -> list[Problem]:
    """The problems that an exception from the user's code stands for."""
    if isinstance(error, ContractError):
        return [replace(problem, facts=(("in", error.subject), *problem.facts)) for problem in error.problems]
    if isinstance(error, UserError):
        return list(error.problems)
    if isinstance(error, SyntaxError):
        at = Location(error.filename or str(file), error.lineno or 1)
        return [Problem(f"SyntaxError: {error.msg}.", at, fix="mend the syntax")]
    frames = [frame for frame in traceback.extract_tb(error.__traceback__) if _is_users(frame.filename, file)]
    at = Location(frames[-1].filename, frames[-1].lineno or 1) if frames else Location(str(file), 1)
    places = dict.fromkeys(str(Location(frame.filename, frame.lineno or 1)) for frame in reversed(frames[:-1]))
    called = tuple(("from", place) for place in list(places)[:_SHOWN_FRAMES])
    message = _message(error).rstrip(".") or "no message"
    return [Problem(f"{type(error).__name__}: {message}.", at, called, _fix_of(error, file))]


def _message(error: BaseException) -> str:
    missing = _MISSING_NAME.match(str(error)) if isinstance(error, ImportError) else None
    if missing is None:
        return str(error)
    circle = ": the two import each other" if missing["circle"] else ""
    return f"cannot import `{missing['name']}` from `{missing['module']}`{circle}"


def _is_users(filename: str, file: Path) -> bool:
    if filename.startswith("<") or is_inside_package(filename):
        return False
    return filename == str(file) or ("site-packages" not in filename and not filename.startswith(sys.base_prefix))


def _fix_of(error: BaseException, file: Path) -> str:
    missing = _MISSING_NAME.match(str(error)) if isinstance(error, ImportError) else None
    if missing is not None and missing["circle"]:
        return "move what both need into a file of its own, or import inside the function that needs it"
    top = missing["module"].partition(".")[0] if missing is not None else ""
    beside = namesake_beside(file, top) if top else None
    if beside is not None:
        return goes_first(top, beside)
    if missing is not None and missing["module"] in sys.modules:
        close = nearest(missing["name"], dir(sys.modules[missing["module"]]))
        if close is not None:
            return f"did you mean `{close}`?"
    if isinstance(error, ModuleNotFoundError) and error.name == _VARIED:
        return f"put `{_VARIED}.py` beside `{file.name}` (it imports it), or install it"
    if isinstance(error, ModuleNotFoundError):
        return "install it, or put the file beside the pipeline"
    if isinstance(error, SystemExit):
        return "let the file and `build` return normally; raise an error to refuse"
    if isinstance(error, NameError) and error.name:
        close = nearest(error.name, _names_around(error)) or nearest(error.name, _public_names())
        known = f"did you mean `{close}`? " if close else ""
        return f"{known}define or import `{error.name}` first"
    return "mend that line"


def _names_around(error: BaseException) -> list[str]:
    """The names that the user's code had where it raised."""
    frames = [frame for frame, _ in traceback.walk_tb(error.__traceback__)]
    return [name for frame in frames[-1:] for name in (*frame.f_locals, *frame.f_globals)]


def _public_names() -> list[str]:
    modules = [sys.modules[name] for name in ("dagrl", "dagrl.nodes") if name in sys.modules]
    return [name for module in modules for name in module.__all__]


def _parts(module: ModuleType, file: Path) -> tuple[type, Any]:
    problems: list[Problem] = []
    at = Location(str(file), 1)
    members = vars(module)
    config_class, build = members.get("Config"), members.get("build")
    if not (inspect.isclass(config_class) and dataclasses.is_dataclass(config_class)):
        what = "the file defines no `Config`." if config_class is None else "`Config` is not a dataclass."
        problems.append(
            Problem(what, at, fix="add `@dataclass(frozen=True, kw_only=True) class Config:` with the knobs")
        )
    if not inspect.isfunction(build):
        problems.append(
            Problem("the file defines no function `build`.", at, fix="add `def build(cfg: Config) -> Pipeline:`")
        )
    elif len(inspect.signature(build).parameters) != 1:
        where = Location(str(file), build.__code__.co_firstlineno)
        problems.append(Problem("`build` does not take one argument.", where, fix="write `def build(cfg: Config):`"))
    if problems:
        raise PipelineFileError(problems, _subject(file))
    if not inspect.isclass(config_class):
        raise TypeError("unreachable: a checked Config is a class")
    return config_class, build


def _checked(built: Any, file: Path, build: Any) -> tuple[Pipeline, ...]:
    pipelines = built if isinstance(built, tuple) else (built,)
    if pipelines and all(isinstance(pipeline, Pipeline) for pipeline in pipelines):
        return pipelines
    shown = ", ".join(type(item).__name__ for item in pipelines) or "an empty tuple"
    at = Location(str(file), build.__code__.co_firstlineno)
    what = f"`build` returned {shown}, not a Pipeline or a tuple of them."
    raise PipelineFileError([Problem(what, at, fix="end `build` with `return step`")], _subject(file))
