"""The nodes and losses that a module names, and the built-in ones."""

from __future__ import annotations

from collections.abc import Iterator
from types import ModuleType
from typing import Any

from dagrl.graph.losses import Loss
from dagrl.graph.node import Node
from dagrl.graph.source import is_inside_package

Declared = Node[..., Any] | Loss[..., Any]


def built_in() -> list[Declared]:
    """The nodes and losses of `dagrl.nodes`."""
    import dagrl.nodes

    return list(declarations(dagrl.nodes))


def declarations(module: ModuleType) -> Iterator[Declared]:
    """The nodes and losses that a module names."""
    return (value for value in vars(module).values() if isinstance(value, Node | Loss))


def place_of(declared: Declared) -> str:
    """File and line; the module of a built-in one."""
    at = declared.contract.at
    return declared.function.__module__ if is_inside_package(at.file) else str(at)
