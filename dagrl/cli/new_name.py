"""Whether a name can be that of a new file and what is in it: as it is written it must work."""

from __future__ import annotations

import ast
import builtins
import importlib.util
import keyword
import re
import sys

from dagrl.errors import ConfigError, Problem

_NAME = re.compile(r"[A-Za-z][A-Za-z0-9_]*")
#: Most file systems end there; `test_NAME.py` is the longer file.
_LONGEST = 255 - len("test_.py")


def require_good_name(kind: str, name: str, text: str) -> None:
    """See that ``name`` works as module, function and pipeline, in a file with this text.

    Raises:
        ConfigError: with the reason why not.
    """
    reason = _no_name(name) or _hides_a_module(name) or (_used_already(name, text) if kind != "pipeline" else None)
    if reason is not None:
        what, fix = reason
        raise ConfigError([Problem(what, fix=fix)])


def _no_name(name: str) -> tuple[str, str] | None:
    if not _NAME.fullmatch(name):
        fix = "use letters a to z, digits and `_`, a letter first, e.g. `my_advantage`"
        return f"`{name}` is no name for a Python file and what it defines.", fix
    if keyword.iskeyword(name):
        return f"`{name}` is a word of Python's own, so nothing can be named so.", f"e.g. `{name.lower()}_`"
    if name.startswith("test_"):
        return f"`{name}` is the name of a test, which pytest would try to run.", f"e.g. `{name.removeprefix('test_')}`"
    if len(name) > _LONGEST:
        return f"a name of {len(name)} characters is too long for a file.", f"use at most {_LONGEST}"
    return None


def _hides_a_module(name: str) -> tuple[str, str] | None:
    if name in sys.stdlib_module_names or name in sys.builtin_module_names or _is_installed(name):
        return f"there is a module `{name}` already.", "choose another name: a file of this one would hide it"
    return None


def _is_installed(name: str) -> bool:
    """True for a module that can be imported; one beside the new file is found when the file is written."""
    try:
        spec = importlib.util.find_spec(name)
    except ValueError:  # a module without a spec is loaded already
        return True
    return spec is not None


def _used_already(name: str, text: str) -> tuple[str, str] | None:
    """A function of a name that its own file and test use, or that dagrl or Python gives to something else."""
    import dagrl
    import dagrl.nodes

    if name in {*dagrl.__all__, *dagrl.nodes.__all__}:
        return f"dagrl has a `{name}` already.", "choose another name: a file that imports both would see only one"
    if name in vars(builtins) or name in _names(text):
        return f"`{name}` means something else in the file to be written.", f"choose another name, e.g. `my_{name}`"
    return None


def _names(text: str) -> set[str]:
    found: set[str] = set()
    for part in ast.walk(ast.parse(text)):
        match part:
            case ast.Name(id=name) | ast.arg(arg=name):
                found.add(name)
            case ast.alias(name=name):
                found.add(name.partition(".")[0])
            case _:
                pass
    return found - {"NAME"}
