"""What a worker is called with, as its method gets it, and what goes back."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple

from dagrl.controller.batches import common_rows, is_batch
from dagrl.controller.future import DataProtoFuture
from dagrl.controller.shards import Misfit, NotMade, Placed, Shard, Split
from dagrl.controller.shares import Rule
from dagrl.errors import DispatchError

#: The keyword under which a call carries its `Orders`.
ORDERS_KEY = "_dagrl_orders"


@dataclass(frozen=True)
class Part:
    """What a rank does with whole batches that only it and its peers see: take part ``index`` of ``of``."""

    index: int
    of: int
    rule: Rule
    padded: bool

    def taken(self, values: Mapping[int | str, Any]) -> dict[int | str, Any]:
        """The values with a shard in place of each batch."""
        split = Split.of(values, self.of, self.rule, padded=self.padded)
        return {which: split.shard(value, self.index) if is_batch(value) else value for which, value in values.items()}


@dataclass(frozen=True)
class Orders:
    """What a rank is told beside its arguments: to split them itself, and whether its result is wanted.

    ``aligned`` says that its batches must have equally many rows.
    """

    part: Part | None = None
    returns: bool = True
    aligned: bool = False


class Received(NamedTuple):
    """The arguments of a rank's call as its method gets them."""

    args: tuple[Any, ...]
    kwargs: dict[str, Any]
    shard: Shard | None
    returns: bool

    def answer(self, output: Any) -> Any:
        """What goes back of the method's result."""
        if not self.returns:
            return None
        return output if self.shard is None else self.shard.answered(output)


def receive(
    args: Sequence[Any],
    kwargs: Mapping[str, Any],
    *,
    materialize: bool = True,
    own: Callable[[Any], Any] | None = None,
) -> Received:
    """Open what a call carries: futures become their values, batches the rank's shard of them.

    ``own`` makes copies where the receiver is no process of its own.

    Raises:
        ArgumentError: when two batches have different numbers of rows.
        DispatchError: when a value cannot be had from those who made it.
        WorkerError: when they failed to make it.
    """
    values: dict[int | str, Any] = {**dict(enumerate(args)), **kwargs}
    orders: Orders = values.pop(ORDERS_KEY, Orders())
    if materialize:
        values = {k: v.get() if isinstance(v, DataProtoFuture) else v for k, v in values.items()}
    if orders.part is not None:
        values = orders.part.taken(values)
    elif orders.aligned:
        common_rows(values)
    if own is not None:
        values = {which: own(value) for which, value in values.items()}
    shard = next((value for value in values.values() if isinstance(value, Shard)), None)
    opened = {which: _opened(value) for which, value in values.items()}
    positional = tuple(value for which, value in opened.items() if isinstance(which, int))
    return Received(positional, {k: v for k, v in opened.items() if isinstance(k, str)}, shard, orders.returns)


def _opened(value: Any) -> Any:
    if isinstance(value, Misfit):
        raise DispatchError(f"the worker that made this value {value.wrong}")
    if isinstance(value, NotMade):
        raise value.failure
    if isinstance(value, Placed):
        return value.batch
    return value.opened() if isinstance(value, Shard) else value
