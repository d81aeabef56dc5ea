"""Names of columns as callers pass them, checked against those that exist, and named in messages."""

from collections.abc import Iterable, Mapping, Sequence
from typing import Any, TypeVar

from dagrl.errors import DataError, MissingColumnError

V = TypeVar("V")


def names_of(keys: str | Sequence[str]) -> list[str]:
    """The names; a single string is one name."""
    return [keys] if isinstance(keys, str) else list(keys)


def chosen(keys: str | Sequence[str] | None, there: Mapping[str, V], kind: str) -> dict[str, V]:
    """The named entries, all of them for None.

    Raises:
        MissingColumnError: naming what is not there, and what is.
    """
    names = list(there) if keys is None else names_of(keys)
    require(names, there, kind)
    return {name: there[name] for name in names}


def without(there: Mapping[str, V], names: Iterable[str]) -> dict[str, V]:
    """The entries under other names."""
    gone = set(names)
    return {name: value for name, value in there.items() if name not in gone}


def renamed(there: Mapping[str, V], to: Mapping[str, str]) -> dict[str, V]:
    """The entries in order, under the names that ``to`` gives them."""
    return {to.get(name, name): value for name, value in there.items()}


def renaming(old: str | Sequence[str], new: str | Sequence[str], there: Mapping[str, Any]) -> dict[str, str]:
    """The new name of each old one.

    Raises:
        DataError: if the names do not pair, or two columns would have one name.
        MissingColumnError: naming what is not there, and what is.
    """
    olds, news = names_of(old), names_of(new)
    if len(olds) != len(news):
        raise DataError(f"rename: {len(olds)} old keys but {len(news)} new ones")
    require(olds, there, "column")
    to = dict(zip(olds, news, strict=True))
    names = [to.get(name, name) for name in there]
    twice = sorted({name for name in names if names.count(name) > 1})
    if twice:
        raise DataError(f"rename: two columns would be named {listed(twice)}")
    return to


def require(names: Sequence[str], there: Mapping[str, Any], kind: str) -> None:
    """Raise a MissingColumnError unless every name is there."""
    missing = [name for name in names if name not in there]
    if missing:
        raise MissingColumnError(f"no {kind} {listed(missing)}; there are {listed(there) or 'none'}")


def listed(names: Iterable[str]) -> str:
    """The names in backticks."""
    return ", ".join(f"`{name}`" for name in names)


def check_at_least(least: int, **number: int) -> None:
    """Raise a DataError that names the first number below ``least``."""
    for name, value in number.items():
        if value < least:
            raise DataError(f"`{name}` is {value}, it must be at least {least}")
