"""``dagrl nodes``: what nodes and losses there are, and what each reads, writes and takes."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from typing import TYPE_CHECKING, Any

import click

from dagrl.cli.output import say

if TYPE_CHECKING:
    from dagrl.cli.declared import Declared
    from dagrl.graph.contract import LossContract, NodeContract, Read


@click.command()
@click.argument("file", required=False, type=click.Path(dir_okay=False))
def nodes(file: str | None) -> None:
    """List nodes and losses with columns and options: those that FILE defines and imports.

    Without FILE the built-in ones, and what installed packages publish by entry points of the group `dagrl.plugins`.
    """
    from dagrl.cli.declared import built_in, place_of
    from dagrl.cli.declared_in_file import declared_in

    found = built_in() if file is None else declared_in(file)
    if not found:
        say(f"{file} defines and imports no node or loss of its own; without FILE the built-in ones are listed")
        return
    blocks = [_lines(declared, place_of(declared)) for declared in found]
    say("\n\n".join("\n".join(block) for block in [*blocks, *(_published_blocks() if file is None else ())]))


def _published_blocks() -> Iterator[Iterable[str]]:
    """What installed packages publish, each with its origin; what does not load is named."""
    from dagrl.cli.published import Broken, file_of, published

    shown: set[Declared] = set()
    for one in published():
        if isinstance(one, Broken):
            yield [f"{one.name}  skipped, from {one.origin}", f"    {one.why}"]
            continue
        yield from (_lines(declared, f"from {one.origin}") for declared in one.declared if declared not in shown)
        shown.update(one.declared)
        if one.pipeline is not None:
            place = f"    dagrl run {one.name}  ({file_of(one.pipeline).name})"
            yield [f"{one.name}  pipeline, from {one.origin}", place]


def _lines(declared: Declared, place: str) -> Iterator[str]:
    from dagrl.graph.contract import kind_of
    from dagrl.graph.node import Node

    contract = declared.contract
    yield f"{contract.name}  {kind_of(contract)}, {place}"
    if contract.doc:
        yield f"    {contract.doc}"
    if isinstance(declared, Node):
        yield from _node_lines(declared.contract)
    else:
        yield from _labelled("reads", [*declared.contract.engine_outputs, *_reads(contract.reads)])
        yield from _hook_lines(declared.contract)
    yield from _labelled("options", [_option(option.name, option.default) for option in contract.options])


def _node_lines(contract: NodeContract) -> Iterator[str]:
    carried = [*contract.carried, *([contract.positions] if contract.positions else [])]
    of_loss = ["the columns of its loss"] if contract.loss_columns is not None else []
    yield from _labelled("reads", [*_reads(contract.reads), *carried, *of_loss])
    writes = [f"{write.name}: {write.type}{_optional(write.optional)}" for write in contract.writes]
    yield from _labelled("writes", writes)
    if contract.rows == "filter":
        yield "    filters rows"
    if contract.role is not None:
        role = f"{contract.role.parameter}: {contract.role.protocol.__name__}"
        yield f"    runs on {role}, {contract.needs} weights{', which it changes' if contract.mutates else ''}"


def _hook_lines(contract: LossContract) -> Iterator[str]:
    if contract.prepare is not None:
        given = ", ".join(str(read) for read in contract.prepare.gives)
        yield f"    prepares {given}  by {contract.prepare.name}, over each mini-batch"
    if contract.project is not None:
        yield f"    projects logits to one number a token by {contract.project.name}"


def _reads(reads: Iterable[Read]) -> list[str]:
    return [f"{read}{_optional(read.optional)}" for read in reads]


def _optional(optional: bool) -> str:
    return " (optional)" if optional else ""


def _option(name: str, default: Any) -> str:
    from dagrl.graph.contract import REQUIRED

    return f"{name} (required)" if default is REQUIRED else f"{name}={default!r}"


def _labelled(label: str, items: list[str]) -> Iterator[str]:
    if items:
        yield f"    {label:<8} {', '.join(items)}"
