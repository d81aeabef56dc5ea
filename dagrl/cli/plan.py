"""``dagrl plan``: what a step will run, drawn and as a table; loads and starts nothing."""

from __future__ import annotations

import os
import sys
from pathlib import Path
from typing import TYPE_CHECKING

import click

from dagrl.cli.machine import Kind, planned_machine
from dagrl.cli.options import EXECUTOR, FILE, SET
from dagrl.cli.output import say

if TYPE_CHECKING:
    from collections.abc import Sequence

    from dagrl.compiler import Plan

#: Cells of a line where no terminal says how many it has.
_PLAIN_WIDTH = 100
_LEAST_WIDTH = 20
_DRAWN_WITH = "─│╭╮╰╯┌┐└┘├┤┬┴┼▶┊→←·…"


@click.command()
@FILE
@SET
@EXECUTOR
@click.option("--json", "as_json", is_flag=True, help="Print the plans as JSON.")
@click.option("--mermaid", type=click.Path(dir_okay=False), metavar="FILE", help="Write the graphs as a Mermaid chart.")
@click.option("--svg", type=click.Path(dir_okay=False), metavar="FILE", help="Write the drawings as SVG.")
def plan(
    file: str, assignments: tuple[str, ...], executor: Kind, as_json: bool, mermaid: str | None, svg: str | None
) -> None:
    """Check, plan and draw the pipelines in FILE; load and start nothing."""
    from dagrl.cli.config import split_assignments
    from dagrl.cli.pipeline_file import load_pipelines
    from dagrl.compiler import compile_pipelines

    plans = compile_pipelines(load_pipelines(file, split_assignments(assignments)).pipelines, planned_machine(executor))
    if mermaid is not None:
        from dagrl.tui.mermaid import mermaid_text

        _write("--mermaid", mermaid, mermaid_text(plans))
    if svg is not None:
        from dagrl.tui.plan_svg import plan_svg

        _write("--svg", svg, plan_svg(plans))
    if as_json:
        say("[\n" + ",\n".join(one.to_json() for one in plans) + "\n]")
    else:
        say("\n\n".join(_printed(plans)))


def _write(option: str, path: str, text: str) -> None:
    from dagrl.errors import ConfigError, Problem

    try:
        Path(path).write_text(text, encoding="utf-8")
    except OSError as error:
        reason = error.strerror or type(error).__name__
        facts = (("option", f"`{option} {path}`"),)
        raise ConfigError(
            [
                Problem(
                    f"`{path}` cannot be written: {reason}", facts=facts, fix="name a file in a folder you may write to"
                )
            ]
        ) from error


def _printed(plans: Sequence[Plan]) -> list[str]:
    """Each plan: its head, its drawing and its table; no drawing where the encoding lacks the characters."""
    from dagrl.cli.plan_text import plan_head, plan_table

    return ["\n\n".join([plan_head(one), *_drawing(one), plan_table(one)]) for one in plans]


def _drawing(one: Plan) -> list[str]:
    from rich.console import Console

    from dagrl.tui.plan_drawing import plan_drawing

    if not _can_draw():
        return []
    if not sys.stdout.isatty():
        return ["\n".join(line.plain.rstrip() for line in plan_drawing(one, _plain_width()))]
    console = Console(markup=False, highlight=False, emoji=False)
    with console.capture() as captured:
        for line in plan_drawing(one, max(console.width, _LEAST_WIDTH)):
            console.print(line, soft_wrap=True)
    return [captured.get().rstrip("\n")]


def _plain_width() -> int:
    columns = os.environ.get("COLUMNS", "")
    return max(int(columns), _LEAST_WIDTH) if columns.isdecimal() else _PLAIN_WIDTH


def _can_draw() -> bool:
    try:
        _DRAWN_WITH.encode(sys.stdout.encoding or "utf-8")
    except (UnicodeEncodeError, LookupError):
        return False
    return True
