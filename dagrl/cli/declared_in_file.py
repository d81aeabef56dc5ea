"""The nodes and losses that a file defines or imports."""

from __future__ import annotations

from types import ModuleType

from dagrl.cli.declared import Declared, declarations
from dagrl.cli.pipeline_file import load_file
from dagrl.graph.source import is_inside_package


def declared_in(path: str) -> list[Declared]:
    """The user's own nodes and losses in the file at ``path``, in the order in which it names them.

    Those of a module that the file imports as a whole count too; dagrl's own do not.

    Raises:
        PipelineFileError: when the file cannot be run.
    """
    _, _, module = load_file(path)
    inner = [value for value in vars(module).values() if isinstance(value, ModuleType)]
    found = [*declarations(module), *(one for other in inner for one in declarations(other))]
    return list(dict.fromkeys(one for one in found if not is_inside_package(one.contract.at.file)))
