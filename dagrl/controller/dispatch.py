"""The functions of the built-in dispatch modes: what each rank is called with, and what becomes of the results."""

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Protocol

from dagrl.errors import DispatchError

if TYPE_CHECKING:
    from dagrl.data.proto import DataProto

#: The keyword under which a dispatch function hands on what it added to the rows.
PADDING_KEY = "_dagrl_padding"
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


@dataclass(frozen=True)
class Shards:
    """A batch that is split already: one reference for each rank."""

    refs: tuple[Any, ...]


@dataclass(frozen=True)
class Padding:
    """Rows of the arguments once padded, and how many of them, at the end, are padding."""

    rows: int
    added: int


def dispatch_unchanged(group: HasWorldSize, *args: Any, **kwargs: Any) -> Arguments:
    """The arguments as they are."""
    return args, kwargs


def dispatch_one_to_all(group: HasWorldSize, *args: Any, **kwargs: Any) -> Arguments:
    """Every argument once for each rank."""
    return _map_arguments(lambda _, value: [value] * group.world_size, args, kwargs)


def dispatch_all_to_all(group: HasWorldSize, *args: Any, **kwargs: Any) -> Arguments:
    """The arguments, which must be lists with one item for each rank."""
    return _map_arguments(lambda which, value: check_per_rank(which, value, group.world_size), args, kwargs)


def dispatch_proto(group: HasWorldSize, *args: Any, **kwargs: Any) -> Arguments:
    """Batches padded and split over the ranks; anything else once for each rank."""
    rows = _common_rows(args, kwargs)
    padding = Padding(rows + -rows % group.world_size, -rows % group.world_size)
    split_args, split_kwargs = _map_arguments(lambda _, value: _shards(value, group.world_size), args, kwargs)
    return split_args, {**split_kwargs, PADDING_KEY: padding}


def dispatch_proto_unpadded(group: HasWorldSize, *args: Any, **kwargs: Any) -> Arguments:
    """Batches split over the ranks, the first ones a row longer where they do not divide."""
    _common_rows(args, kwargs)
    return _map_arguments(lambda _, value: _shards(value, group.world_size, padded=False), args, kwargs)


def dispatch_proto_with_func(group: HasWorldSize, *args: Any, **kwargs: Any) -> Arguments:
    """A function for every rank, then as `dispatch_proto`."""
    if not args or not callable(args[0]):
        raise DispatchError("the first argument must be a function, which every rank gets")
    split_args, split_kwargs = dispatch_proto(group, *args[1:], **kwargs)
    return ([args[0]] * group.world_size, *split_args), split_kwargs


def collect_first(group: HasWorldSize, output: Any) -> Any:
    """What rank 0 returned."""
    return output


def collect_all(group: HasWorldSize, outputs: list[Any]) -> list[Any]:
    """What the ranks returned, in rank order."""
    return outputs


def collect_proto(group: HasWorldSize, outputs: list[Any]) -> Any:
    """The batches that the ranks returned as one, in rank order; None if all returned None.

    Raises:
        DispatchError: when a rank returned anything else.
    """
    if all(output is None for output in outputs):
        return None
    from dagrl.data.proto import DataProto
    from dagrl.data.tensordicts import TensorDict

    if all(isinstance(output, TensorDict) for output in outputs):
        return DataProto.concat([DataProto.from_tensordict(output) for output in outputs]).to_tensordict()
    for rank, output in enumerate(outputs):
        if not isinstance(output, DataProto):
            raise DispatchError(
                f"rank {rank} returned a `{type(output).__name__}`, but this dispatch mode concatenates batches: "
                "return a DataProto, or use a mode that returns a list, such as `Dispatch.DP_COMPUTE_METRIC`"
            )
    return DataProto.concat(outputs)


def without_padding(result: Any, padding: Padding) -> Any:
    """The result without the rows that came of padding; a result may have several rows for each row it was given.

    Raises:
        DispatchError: when the rows cannot be told from the others.
    """
    if not padding.added or result is None:
        return result
    from dagrl.data.proto import DataProto, unpad_dataproto
    from dagrl.data.tensordicts import TensorDict

    if isinstance(result, TensorDict):
        return without_padding(DataProto.from_tensordict(result), padding).to_tensordict()
    if not isinstance(result, DataProto):
        return result
    if len(result) % padding.rows:
        raise DispatchError(
            f"{padding.rows - padding.added} rows were padded to {padding.rows}, and {len(result)} came back: those of "
            "the padding cannot be told from the others; give a number of rows that the ranks divide"
        )
    return unpad_dataproto(result, padding.added * (len(result) // padding.rows))


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


def _batch(value: Any) -> "DataProto | None":
    """The value as a batch, None if it is none."""
    from dagrl.data.proto import DataProto
    from dagrl.data.tensordicts import TensorDict

    if isinstance(value, TensorDict):
        return DataProto.from_tensordict(value)
    return value if isinstance(value, DataProto) else None


def _common_rows(args: tuple[Any, ...], kwargs: Mapping[str, Any]) -> int:
    """The number of rows of every batch among the arguments; 0 where there is none.

    Raises:
        ArgumentError: when two differ.
    """
    named: dict[int | str, Any] = {**dict(enumerate(args)), **kwargs}
    rows = {which: len(batch) for which, value in named.items() if (batch := _batch(value)) is not None}
    first = next(iter(rows.values()), 0)
    for which, count in rows.items():
        if count != first:
            raise ArgumentError(which, f"has {count} rows, but the first batch of the call has {first}")
    return first


def _shards(value: Any, world_size: int, *, padded: bool = True) -> list[Any]:
    """One item for each rank: its shard of a batch, or the value itself."""
    from dagrl.data.proto import pad_dataproto_to_divisor
    from dagrl.data.tensordicts import TensorDict

    if isinstance(value, Shards):
        return list(value.refs)
    batch = _batch(value)
    if batch is None:
        return [value] * world_size
    whole = pad_dataproto_to_divisor(batch, world_size)[0] if padded else batch
    parts = whole.chunk(world_size, uneven=not padded)
    return [part.to_tensordict() for part in parts] if isinstance(value, TensorDict) else list(parts)
