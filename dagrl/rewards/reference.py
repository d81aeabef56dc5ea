"""``"module:name"`` and ``"path/to/file.py:name"``: find the function by reading, without running anything."""

from __future__ import annotations

import ast
import difflib
import sys
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from pathlib import Path

from dagrl.rewards.errors import RewardReferenceError
from dagrl.rewards.loading import Source
from dagrl.rewards.shapes import Parameters

_FORM = "write `module:name` or `path/to/file.py:name`"


@dataclass(frozen=True)
class Found:
    """A function that exists; ``parameters`` is None where reading alone does not tell."""

    source: Source
    parameters: Parameters | None


def find_function(reference: str) -> Found:
    """The function that a reference leads to.

    A relative path is looked for in the folders of ``sys.path``, the last one first, which is that of the pipeline
    file, and then in the working directory.

    Raises:
        RewardReferenceError: saying what is not there, and what of a close name is.
    """
    place, _, name = reference.rpartition(":")
    if not place or not name.isidentifier():
        raise RewardReferenceError(f"{reference!r} is no reference to a function; {_FORM}")
    if place.endswith(".py") or "/" in place:
        source = Source(name, str(_find_file(place)))
    else:
        source = Source(name, _find_module(place), place, tuple(sys.path))
    return Found(source, _parameters(source, place))


def _find_file(place: str) -> Path:
    given = Path(place).expanduser()
    folders = [Path()] if given.is_absolute() else [*map(Path, reversed(sys.path)), Path.cwd()]
    for folder in folders:
        if (folder / given).is_file():
            return (folder / given).resolve()
    beside = {path.name for folder in _own_folders() for path in (folder / given).parent.glob("*.py")}
    where = "" if given.is_absolute() else f", neither beside the pipeline nor in {Path.cwd()}"
    raise RewardReferenceError(
        f"there is no file `{place}`{where}{_nearest(given.name, beside, 'give the path of one')}"
    )


def _own_folders() -> Iterator[Path]:
    """The folders in which a user's files may lie: those of installed packages are left out."""
    for folder in [Path(path) for path in reversed(sys.path)]:
        if "site-packages" not in folder.parts and not folder.is_relative_to(sys.base_prefix):
            yield folder
    yield Path.cwd()


def _find_module(module: str) -> str:
    """The file of a module, found through the import system's finders; no package is imported on the way."""
    path: Iterable[str] | None = None
    parts = module.split(".")
    spec = None
    for depth in range(len(parts)):
        name = ".".join(parts[: depth + 1])
        found = (finder.find_spec(name, None if path is None else list(path)) for finder in sys.meta_path)
        spec = next((one for one in found if one is not None), None) if parts[depth] else None
        if spec is None:
            near = {file.stem for folder in _own_folders() for file in folder.glob("*.py")} if depth == 0 else ()
            fix = "install it, or put the file beside the pipeline"
            raise RewardReferenceError(f"there is no module `{name}`{_nearest(name, near, fix)}")
        path = spec.submodule_search_locations or []
    return (spec.origin if spec is not None else None) or module


def _parameters(source: Source, place: str) -> Parameters | None:
    if not source.file.endswith(".py"):
        return None
    tree = _parse(source.file, place)
    defined = dict(_definitions(tree.body))
    if source.name not in defined and source.name in dict(_definitions(_only_in_scripts(tree.body))):
        what = f'`{source.name}` in `{place}` is defined under `if __name__ == "__main__"`'
        raise RewardReferenceError(f"{what}, which is left out when the file is imported; define it above")
    star = any(isinstance(one, ast.ImportFrom) and one.names[0].name == "*" for one in tree.body)
    if source.name not in defined and not star and "__getattr__" not in defined:
        functions = [name for name, one in defined.items() if isinstance(one, ast.FunctionDef | ast.AsyncFunctionDef)]
        near = _nearest(source.name, functions, "define it there")
        raise RewardReferenceError(f"`{place}` has no `{source.name}`{near}")
    function = defined.get(source.name)
    if isinstance(function, ast.ClassDef):
        raise RewardReferenceError(f"`{source.name}` in `{place}` is a class; name a function, or an instance of it")
    if not isinstance(function, ast.FunctionDef | ast.AsyncFunctionDef) or function.decorator_list:
        return None
    return _of_signature(function.args)


def _parse(file: str, place: str) -> ast.Module:
    try:
        return ast.parse(Path(file).read_bytes())
    except SyntaxError as error:
        raise RewardReferenceError(f"`{place}` line {error.lineno}: {error.msg}; mend the syntax") from error
    except (OSError, ValueError) as error:
        raise RewardReferenceError(f"`{place}` cannot be read: {error}") from error


def _definitions(body: Iterable[ast.stmt]) -> Iterator[tuple[str, ast.stmt]]:
    """What a module defines at its top level, also inside ``if``, ``try`` and ``with``."""
    for one in body:
        match one:
            case ast.FunctionDef() | ast.AsyncFunctionDef() | ast.ClassDef():
                yield one.name, one
            case ast.Import() | ast.ImportFrom():
                yield from ((alias.asname or alias.name.split(".")[0], one) for alias in one.names)
            case ast.Assign() | ast.AnnAssign() | ast.AugAssign():
                yield from ((name, one) for name in map(_stored_name, ast.walk(one)) if name is not None)
            case ast.If() if _is_script_guard(one.test):
                yield from _definitions(one.orelse)
            case ast.If() | ast.Try() | ast.With():
                inner = [child for child in ast.walk(one) if isinstance(child, ast.stmt) and child is not one]
                yield from _definitions(inner)
            case _:
                pass


def _only_in_scripts(body: Iterable[ast.stmt]) -> list[ast.stmt]:
    guarded = [one for one in body if isinstance(one, ast.If) and _is_script_guard(one.test)]
    return [inner for one in guarded for inner in one.body]


def _is_script_guard(test: ast.expr) -> bool:
    return ast.unparse(test) in ("__name__ == '__main__'", "'__main__' == __name__")


def _stored_name(node: ast.AST) -> str | None:
    return node.id if isinstance(node, ast.Name) and isinstance(node.ctx, ast.Store) else None


def _of_signature(arguments: ast.arguments) -> Parameters:
    by_name = [*arguments.args, *arguments.kwonlyargs]
    num_required = len(arguments.posonlyargs) + len(arguments.args) - len(arguments.defaults)
    required = [one.arg for one in [*arguments.posonlyargs, *arguments.args][:num_required]]
    required += [
        one.arg for one, default in zip(arguments.kwonlyargs, arguments.kw_defaults, strict=True) if default is None
    ]
    return Parameters(
        names=tuple(one.arg for one in by_name),
        required=frozenset(required),
        takes_any=arguments.kwarg is not None,
        positional_only=bool(arguments.posonlyargs),
        takes_many=arguments.vararg is not None,
    )


def _nearest(name: str, known: Iterable[str], otherwise: str) -> str:
    close = difflib.get_close_matches(name, sorted(known), n=1, cutoff=0.5)
    return f"; did you mean `{close[0]}`?" if close else f"; {otherwise}"
