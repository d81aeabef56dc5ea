"""``dagrl check``: hold the nodes and losses of a file against what their declarations promise."""

from __future__ import annotations

from typing import TYPE_CHECKING

import click

from dagrl.cli.output import say
from dagrl.errors import ConfigError, ContractViolationError, Problem, counted

if TYPE_CHECKING:
    from dagrl.cli.declared import Declared
    from dagrl.contracts import Violation


@click.command()
@click.argument("file", required=False, type=click.Path(dir_okay=False))
@click.option("--all", "with_built_in", is_flag=True, help="Check the built-in nodes and losses too.")
def check(file: str | None, with_built_in: bool) -> None:
    """Check the nodes and losses that FILE, a plugin or a pipeline, defines or imports.

    Each runs on made-up rows: shuffled, cut up, padded wider, poisoned at masked places, one row, none.
    """
    if file is None and not with_built_in:
        raise ConfigError(
            [Problem("`dagrl check` was given no file.", fix="give a file, or `--all` for the built-in ones")]
        )
    from dagrl.cli.declared import built_in
    from dagrl.cli.declared_in_file import declared_in

    found = [*(declared_in(file) if file is not None else []), *(built_in() if with_built_in else [])]
    if not found:
        say(f"nothing to check: {file} defines and imports no node or loss of its own (--all: the built-in ones)")
    violations = [violation for declared in found for violation in _checked(declared)]
    if violations:
        raise ContractViolationError([violation.problem for violation in violations], f"`{file or '--all'}`")


def _checked(declared: Declared) -> list[Violation]:
    from dagrl.cli.declared import place_of
    from dagrl.contracts import check_loss, check_node
    from dagrl.graph.contract import kind_of
    from dagrl.graph.node import Node

    violations = check_node(declared) if isinstance(declared, Node) else check_loss(declared)
    verdict = f"FAIL, {counted(len(violations), 'violation')}" if violations else "ok"
    say(f"{kind_of(declared.contract)} {declared.contract.name:<24} {verdict}  ({place_of(declared)})")
    return violations
