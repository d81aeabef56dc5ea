"""The nodes and losses that a file defines or imports, and the built-in ones."""

from __future__ import annotations

from collections.abc import Iterator
from types import ModuleType
from typing import Any

from dagrl.cli.pipeline_file import load_file
from dagrl.graph.losses import Loss
from dagrl.graph.node import Node
from dagrl.graph.source import is_inside_package

Declared = Node[..., Any] | Loss[..., Any]


def declared_in(path: str) -> list[Declared]:
    """The user's own nodes and losses in the file at ``path``, in the order in which it names them.

    Those of a module that the file imports as a whole count too; dagrl's own do not.

    Raises:
        PipelineFileError: when the file cannot be run.
    """
    _, _, module = load_file(path)
    inner = [value for value in vars(module).values() if isinstance(value, ModuleType)]
    found = [*_declarations(module), *(one for other in inner for one in _declarations(other))]
    return list(dict.fromkeys(one for one in found if not is_inside_package(one.contract.at.file)))


def built_in() -> list[Declared]:
    """The nodes and losses of `dagrl.nodes`."""
    import dagrl.nodes

    return list(_declarations(dagrl.nodes))


def _declarations(module: ModuleType) -> Iterator[Declared]:
    return (value for value in vars(module).values() if isinstance(value, Node | Loss))


def place_of(declared: Declared) -> str:
    """File and line; the module of a built-in one."""
    at = declared.contract.at
    return declared.function.__module__ if is_inside_package(at.file) else str(at)
