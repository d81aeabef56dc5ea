"""The command to go on with: every option that was given, whatever its kind, and no other."""

import shlex

import click

from dagrl.cli.stopped import resume_command


@click.command()
@click.argument("file")
@click.option("--set", "assignments", multiple=True)
@click.option("--out")
@click.option("--resume", default="never")
@click.option("--steps", type=int)
@click.option("--seed", type=int, default=0)
@click.option("--quiet/--loud", default=False)
@click.pass_context
def sample(context: click.Context, file: str, **options) -> str:
    return resume_command(context, file, "my runs/a")


def command(*words: str) -> list[str]:
    return shlex.split(sample.main(["my file.py", *words], standalone_mode=False))


def test_the_given_options_come_again() -> None:
    end = ["--out", "my runs/a", "--resume", "auto"]
    assert command() == ["dagrl", "run", "my file.py", *end]
    given = ["--set", "a=1", "--set", "b=x y", "--steps", "3", "--quiet"]
    assert command(*given, "--out", "z", "--resume", "auto") == ["dagrl", "run", "my file.py", *given, *end]
    assert "--loud" in command("--loud")
