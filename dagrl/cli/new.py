"""``dagrl new``: a working file to start from, and its test."""

from __future__ import annotations

import importlib.util
import keyword
from pathlib import Path

import click

from dagrl.errors import ConfigError, Problem


@click.command()
@click.argument("kind", type=click.Choice(["node", "loss", "pipeline"]))
@click.argument("name")
@click.option("--dir", "folder", type=click.Path(file_okay=False), default=".", show_default=True, help="Where to.")
def new(kind: str, name: str, folder: str) -> None:
    """Write NAME.py with a working node, loss or pipeline to change, and test_NAME.py, which passes as it is."""
    from dagrl.cli.templates import TEMPLATES

    source, test = TEMPLATES[kind]
    texts = {f"{name}.py": source, f"test_{name}.py": test}
    _require_free(name, [Path(folder) / file for file in texts])
    Path(folder).mkdir(parents=True, exist_ok=True)
    for file, text in texts.items():
        (Path(folder) / file).write_text(text.replace("NAME", name), encoding="utf-8")
    written = Path(folder) / f"{name}.py"
    print(f"wrote {written} and {Path(folder) / f'test_{name}.py'}")
    print(f"next: edit {written}, then `dagrl {'plan' if kind == 'pipeline' else 'check'} {written}`")


def _require_free(name: str, files: list[Path]) -> None:
    problems: list[Problem] = []
    if not name.isidentifier() or keyword.iskeyword(name):
        fix = "use letters, digits and `_`, e.g. `my_advantage`"
        problems.append(Problem(f"`{name}` is no name for a Python function.", fix=fix))
    elif importlib.util.find_spec(name) is not None and not files[0].exists():
        fix = "choose another name: a file of this one would hide it"
        problems.append(Problem(f"there is a module `{name}` already.", fix=fix))
    problems += [
        Problem(f"`{file}` exists already.", fix="choose another name or --dir; nothing was written")
        for file in files
        if file.exists()
    ]
    if problems:
        raise ConfigError(problems)
