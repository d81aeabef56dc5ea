"""What lies beside a user's file can be imported from it: a reward, a node, the pipeline that it varies."""

import ast
import site
import sys
import sysconfig
from collections.abc import Iterator
from importlib.machinery import PathFinder
from pathlib import Path

from dagrl.errors import Location, Problem

#: Folders of the user files that this process has run, the newest first.
_folders: list[str] = []
_DAGRL = "dagrl"


def find_beside(file: Path) -> None:
    """Let the file import what lies beside it, after what is installed and before anything else of that name.

    Folders of earlier files go behind this one, and so do those of the search path (the working folder, PYTHONPATH)
    that have a module of the same name. The last of the path is this folder once more: names of files are looked for
    from there. A module of that name that is loaded from elsewhere is forgotten.
    """
    folder, names = str(file.parent), _names_in(file.parent)
    own = list(dict.fromkeys(path for path in sys.path if path not in _folders))
    behind = [path for path in own if not _is(path, folder) and not _is_installed(path) and _has_any(path, names)]
    ahead = [path for path in own if path not in behind]
    earlier = [path for path in _folders if path in sys.path and path != folder]
    placed = any(_is(path, folder) for path in ahead)
    sys.path[:] = [*ahead, *([] if placed else [folder]), *dict.fromkeys(earlier), *behind, folder]
    _folders[:] = [*([] if placed else [folder]), *dict.fromkeys(earlier)]
    _forget_shadowed(file.parent, names)


def imports_past_siblings(file: Path, source: str) -> Iterator[Problem]:
    """The imports of a file that an installed package answers, though a module of that name lies beside the file."""
    for name, line in _imported(source).items():
        beside = _beside(file.parent, name)
        found = PathFinder.find_spec(name, sys.path) if beside is not None and name != _DAGRL else None
        if beside is None or found is None or not _is_installed(_home(found.origin)) or is_of_python(name):
            continue
        what = f"`{name}` is imported from {_home(found.origin)}, not from the `{beside}` beside `{file.name}`."
        yield Problem(what, Location(str(file), line), fix=goes_first(name, beside))


def namesake_beside(file: Path, name: str) -> str | None:
    """The file or folder beside a file whose name a module has that was loaded from elsewhere."""
    module, beside = sys.modules.get(name), _beside(file.parent, name)
    is_sibling = module is not None and _is(_home(vars(module).get("__file__")), str(file.parent))
    return None if module is None or is_sibling else beside


def goes_first(name: str, beside: str) -> str:
    """What to do about a sibling that cannot be imported."""
    kind = "a module of Python's own" if is_of_python(name) else "an installed package"
    return f"`{name}` is {kind} and goes first: rename your `{beside}`"


def is_of_python(name: str) -> bool:
    """True for a module of the standard library."""
    return name in sys.stdlib_module_names


def _forget_shadowed(folder: Path, names: set[str]) -> None:
    """Forget modules of other folders, with what is inside them, that have a namesake in this one."""
    homes = {
        name: _home(vars(sys.modules[name]).get("__file__")) for name in names & sys.modules.keys() if name != _DAGRL
    }
    tops = {
        name
        for name, home in homes.items()
        if home is not None and not _is(home, str(folder)) and not _is_installed(home)
    }
    for name in [name for name in sys.modules if name.partition(".")[0] in tops]:
        del sys.modules[name]


def _imported(source: str) -> dict[str, int]:
    """The first part of each module that the text imports by its full name, and the line; none if it is no Python."""
    try:
        tree = ast.parse(source)
    except (SyntaxError, ValueError):
        return {}
    found: dict[str, int] = {}
    for part in ast.walk(tree):
        modules = [alias.name for alias in part.names] if isinstance(part, ast.Import) else []
        if isinstance(part, ast.ImportFrom) and part.level == 0 and part.module is not None:
            modules = [part.module]
        for module in modules:
            found.setdefault(module.partition(".")[0], part.lineno)  # pyright: ignore[reportAttributeAccessIssue]
    return found


def _names_in(folder: Path) -> set[str]:
    """The modules and packages of a folder; dagrl, beside a file of its own repository, is none of the user's."""
    files = {file.stem for file in folder.glob("*.py")}
    packages = {file.parent.name for file in folder.glob("*/__init__.py")}
    return {name for name in files | packages if name.isidentifier()} - {"__init__", "__main__", _DAGRL}


def _has_any(path: str, names: set[str]) -> bool:
    return any(_beside(Path(path), name) is not None for name in names)


def _beside(folder: Path, name: str) -> str | None:
    """The file or the folder that a name is imported from."""
    if (folder / name / "__init__.py").is_file():
        return f"{name}/"
    return f"{name}.py" if (folder / f"{name}.py").is_file() else None


def _home(there: object) -> str | None:
    """The folder from which a module is imported; of a package the one that holds it."""
    if not isinstance(there, str):
        return None
    path = Path(there)
    return str(path.parent.parent if path.name == "__init__.py" else path.parent)


def _is(path: str | None, folder: str) -> bool:
    """True for two names of one folder; "" is the working folder."""
    return path is not None and Path(path).resolve() == Path(folder).resolve()


def _is_installed(path: str | None) -> bool:
    """True inside the standard library and the folders that packages are installed into."""
    if path is None:
        return False
    names = ("stdlib", "platstdlib", "purelib", "platlib")
    roots = [*map(sysconfig.get_path, names), site.getusersitepackages(), *site.getsitepackages()]
    return path.endswith(".zip") or any(Path(path).resolve().is_relative_to(Path(root).resolve()) for root in roots)
