"""``dagrl new``: a working file to start from, and its test."""

from __future__ import annotations

import click

from dagrl.cli.output import say


@click.command()
@click.argument("kind", type=click.Choice(["node", "loss", "pipeline"]))
@click.argument("name")
@click.option("--dir", "folder", type=click.Path(), default=".", show_default=True, help="Where to.")
def new(kind: str, name: str, folder: str) -> None:
    """Write NAME.py with a working node, loss or pipeline to change, and test_NAME.py, which passes as it is."""
    from pathlib import Path

    from dagrl.cli.new_files import write_new
    from dagrl.cli.new_name import require_good_name
    from dagrl.cli.templates import TEMPLATES

    source, test = TEMPLATES[kind]
    require_good_name(kind, name, source + test)
    written = Path(folder) / f"{name}.py"
    tested = Path(folder) / f"test_{name}.py"
    write_new({written: source.replace("NAME", name), tested: test.replace("NAME", name)})
    say(f"wrote {written} and {tested}")
    say(f"next: edit {written}, then `dagrl {'plan' if kind == 'pipeline' else 'check'} {written}`")
