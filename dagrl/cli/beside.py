"""What lies beside a user's file can be imported from it: a reward, a node, the pipeline that it varies."""

import sys
from pathlib import Path

#: Folders of the user files that this process has run, the newest first.
_folders: list[str] = []


def find_beside(file: Path) -> None:
    """Let the file import what lies beside it, after what is installed and before what lies beside earlier files.

    A module of an earlier file's folder is forgotten where this folder has one of the same name.
    """
    folder = str(file.parent)
    if folder in sys.path and folder not in _folders:
        return
    earlier = [path for path in _folders if path in sys.path and path != folder]
    sys.path[:] = [*(path for path in sys.path if path not in _folders), folder, *earlier]
    _folders[:] = [folder, *earlier]
    _forget_shadowed(file.parent)


def _forget_shadowed(folder: Path) -> None:
    """Forget modules, with what is inside them, of earlier folders that have a namesake in this one."""
    others = set(_folders[1:])
    tops = {
        name
        for name, module in list(sys.modules.items())
        if others and "." not in name and _home(vars(module).get("__file__")) in others and _has(folder, name)
    }
    for name in [name for name in sys.modules if name.partition(".")[0] in tops]:
        del sys.modules[name]


def _home(there: object) -> str | None:
    """The folder from which a module is imported; of a package the one that holds it."""
    if not isinstance(there, str):
        return None
    path = Path(there)
    return str(path.parent.parent if path.name == "__init__.py" else path.parent)


def _has(folder: Path, name: str) -> bool:
    return (folder / f"{name}.py").is_file() or (folder / name / "__init__.py").is_file()
