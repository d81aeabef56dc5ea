"""Arguments and options that several commands take."""

import re
from typing import Any

import click

FILE = click.argument("file", type=click.Path(dir_okay=False))
SET = click.option(
    "--set", "assignments", multiple=True, metavar="KEY=VALUE", help="Set a field of the file's Config; repeatable."
)
EXECUTOR = click.option(
    "--executor", type=click.Choice(["ray", "local"]), default="ray", show_default=True, envvar="DAGRL_EXECUTOR",
    show_envvar=True, help="Where ops run: in Ray actors, or in this process.",
)  # fmt: skip

_MOST_STEPS = 1000


class StepNumbers(click.ParamType[tuple[int, ...]]):
    """Numbers of steps, ascending: ``2,3`` or ``5-8`` or both."""

    name = "steps"

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> tuple[int, ...]:
        """The numbers that a text lists."""
        if isinstance(value, tuple):
            return value
        steps: set[int] = set()
        for part in str(value).split(","):
            found = re.fullmatch(r"\s*([0-9]{1,9})(?:-([0-9]{1,9}))?\s*", part)
            if found is None:
                self.fail(f"{part!r} is no step: give numbers such as 2,3 or 5-8", param, ctx)
            first, last = int(found[1]), int(found[2] or found[1])
            if not 1 <= first <= last or last - first >= _MOST_STEPS:
                self.fail(f"{part!r} is no range of steps: they count from 1, at most {_MOST_STEPS}", param, ctx)
            steps.update(range(first, last + 1))
        return tuple(sorted(steps))
