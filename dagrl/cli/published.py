"""What installed packages publish for dagrl: entry points of the group ``dagrl.plugins``.

An entry point names a module, whose nodes and losses it publishes, and a pipeline too if the module has a ``build``; or
it names one node or loss.
"""

from __future__ import annotations

import inspect
import sys
from collections.abc import Iterator
from dataclasses import dataclass
from importlib.metadata import EntryPoint, entry_points
from itertools import accumulate
from pathlib import Path
from types import ModuleType

from dagrl.cli.declared import Declared, declarations
from dagrl.graph.losses import Loss
from dagrl.graph.node import Node

GROUP = "dagrl.plugins"


@dataclass(frozen=True)
class Published:
    """What one entry point gives: nodes and losses, and the module of a pipeline."""

    name: str
    origin: str
    declared: tuple[Declared, ...]
    pipeline: ModuleType | None = None


@dataclass(frozen=True)
class Broken:
    """An entry point that gives nothing, and why."""

    name: str
    origin: str
    why: str


def published() -> Iterator[Published | Broken]:
    """What every entry point gives, by its name; one that fails is told and stops nothing."""
    for entry in sorted(entry_points(group=GROUP), key=lambda entry: (entry.name, entry.value)):
        yield _loaded(entry)


def published_pipeline(name: str) -> Published | Broken | None:
    """What the entry point of that name gives; None where there is none. No other is loaded."""
    entries = list(entry_points(group=GROUP, name=name))
    if len(entries) > 1:
        origins = ", ".join(sorted(map(_origin, entries)))
        return Broken(name, origins, "several packages publish this name: uninstall all but one")
    return _loaded(entries[0]) if entries else None


def published_names() -> list[str]:
    """The names of all entry points, none of them loaded."""
    return sorted(entry_points(group=GROUP).names)


def _loaded(entry: EntryPoint) -> Published | Broken:
    origin = _origin(entry)
    try:
        found = entry.load()
    except (Exception, SystemExit) as error:  # noqa: BLE001 - another package's code
        return Broken(entry.name, origin, f"`{entry.value}` does not load: {type(error).__name__}: {error}")
    if isinstance(found, Node | Loss):
        return Published(entry.name, origin, (found,))
    if not isinstance(found, ModuleType):
        return Broken(entry.name, origin, f"`{entry.value}` is a {type(found).__name__}, no module, node or loss")
    own = tuple(one for one in declarations(found) if _is_of(entry, one))
    pipeline = found if inspect.isfunction(vars(found).get("build")) else None
    if not own and pipeline is None:
        return Broken(entry.name, origin, f"`{entry.value}` has no node, loss or `build`")
    return Published(entry.name, origin, own, pipeline)


def _origin(entry: EntryPoint) -> str:
    return f"{entry.dist.name} {entry.dist.version}" if entry.dist is not None else "an unknown package"


def _is_of(entry: EntryPoint, declared: Declared) -> bool:
    """Whether the entry point's own package declares it, and not one that its module imports from."""
    module = declared.function.__module__
    own = _own_package(entry.module)
    return module == own or module.startswith(f"{own}.") or _ships(entry, module)


def _own_package(module: str) -> str:
    """The outermost package of a loaded module that no other distribution adds to: one below a namespace package."""
    names = list(accumulate(module.split("."), "{}.{}".format))
    return next((name for name in names if not _is_namespace(sys.modules[name])), module)


def _is_namespace(module: ModuleType) -> bool:
    """Whether several distributions may hold parts of it: no file of its own, or several folders."""
    return module.__file__ is None or len(vars(module).get("__path__", ())) > 1


def _ships(entry: EntryPoint, module: str) -> bool:
    """Whether the module is on the list of files that the entry point's distribution has installed, if there is one."""
    path = module.replace(".", "/")
    files = entry.dist.files if entry.dist is not None else None
    return any(str(file) in (f"{path}.py", f"{path}/__init__.py") for file in files or ())


def file_of(module: ModuleType) -> Path:
    """Where the module's text is."""
    return Path(inspect.getfile(module)).resolve()
