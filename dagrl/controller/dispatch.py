"""The functions of the modes that split no batch: what each rank is called with, and what becomes of the results."""

from collections.abc import Callable, Mapping
from typing import Any, Protocol

from dagrl.errors import DispatchError

Arguments = tuple[tuple[Any, ...], dict[str, Any]]


class HasWorldSize(Protocol):
    """What the dispatch functions need of a worker group."""

    @property
    def world_size(self) -> int:
        """The number of ranks."""
        ...


class ArgumentError(DispatchError):
    """One argument does not fit: its place or its name, and what is wrong with it."""

    def __init__(self, argument: int | str, wrong: str) -> None:
        self.argument = argument
        self.wrong = wrong
        super().__init__(self.named(f"`{argument}`" if isinstance(argument, str) else str(argument + 1)))

    def named(self, name: str) -> str:
        """The message with the argument called so."""
        return f"argument {name} {self.wrong}"

    def __reduce__(self):
        return type(self), (self.argument, self.wrong)


def dispatch_unchanged(group: HasWorldSize, *args: Any, **kwargs: Any) -> Arguments:
    """The arguments as they are."""
    return args, kwargs


def dispatch_one_to_all(group: HasWorldSize, *args: Any, **kwargs: Any) -> Arguments:
    """Every argument once for each rank."""
    return _map_arguments(lambda _, value: [value] * group.world_size, args, kwargs)


def dispatch_all_to_all(group: HasWorldSize, *args: Any, **kwargs: Any) -> Arguments:
    """The arguments, which must be lists with one item for each rank."""
    return _map_arguments(lambda which, value: check_per_rank(which, value, group.world_size), args, kwargs)


def collect_first(group: HasWorldSize, output: Any) -> Any:
    """What rank 0 returned."""
    return output


def collect_all(group: HasWorldSize, outputs: list[Any]) -> list[Any]:
    """What the ranks returned, in rank order."""
    return outputs


def check_per_rank(argument: int | str, value: Any, world_size: int) -> list[Any]:
    """The value as a list with one item for each rank.

    Raises:
        ArgumentError: when it is none.
    """
    if not isinstance(value, list | tuple):
        found = f"is a `{type(value).__name__}`"
    elif len(value) != world_size:
        found = f"has {len(value)} items"
    else:
        return list(value)
    wrong = f"{found}, but this dispatch mode needs a list of {world_size}, one item for each rank"
    raise ArgumentError(argument, f"{wrong}; `Dispatch.ONE_TO_ALL` gives every rank the same")


def _map_arguments(
    change: Callable[[int | str, Any], Any], args: tuple[Any, ...], kwargs: Mapping[str, Any]
) -> Arguments:
    """Every argument changed by a function that also gets its place or name."""
    return (
        tuple(change(place, value) for place, value in enumerate(args)),
        {name: change(name, value) for name, value in kwargs.items()},
    )
