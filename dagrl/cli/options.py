"""Arguments and options that several commands take."""

import click

FILE = click.argument("file", type=click.Path(dir_okay=False))
SET = click.option(
    "--set", "assignments", multiple=True, metavar="KEY=VALUE", help="Set a field of the file's Config; repeatable."
)
EXECUTOR = click.option(
    "--executor", type=click.Choice(["ray", "local"]), default="ray", show_default=True, envvar="DAGRL_EXECUTOR",
    show_envvar=True, help="Where ops run: in Ray actors, or in this process.",
)  # fmt: skip
