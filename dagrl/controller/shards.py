"""What a rank is sent of a split batch, and what it sends back: padding is added, marked and taken off here."""

from __future__ import annotations

import copy
import sys
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, NamedTuple

from dagrl.controller.dispatch import ArgumentError
from dagrl.controller.shares import Rule, Share, shares_of
from dagrl.errors import DispatchError

if TYPE_CHECKING:
    import numpy as np
    from jaxtyping import Bool
    from torch import Tensor

    from dagrl.data.proto import DataProto

#: The keyword under which a call carries its `Orders`.
ORDERS_KEY = "_dagrl_orders"
#: True on rows that were repeated to make shards equally long; present in every shard of a call that was padded.
PADDING_MASK = "padding_mask"


@dataclass(frozen=True)
class Shard:
    """A rank's rows of a batch. ``padding`` of them, the last, are repeated ones; None where no rank has any.

    ``places`` are where the others stand in the batch, None where they follow each other in rank order.
    """

    batch: Any
    padding: int | None = None
    places: np.ndarray | None = None

    def opened(self) -> Any:
        """The batch as the worker's method gets it: padding rows marked, without trained tokens or a group."""
        if self.padding is None:
            return self.batch
        data = _marked(_proto(self.batch), self.padding)
        return data if _is_proto(self.batch) else data.to_tensordict()

    def answered(self, output: Any) -> Any:
        """The worker's result without what came of padding, and with its rows' places."""
        if not is_batch(output):
            return output
        data, rows = _without_mask(_proto(output)), len(self.batch)
        each, odd = divmod(len(data), max(rows, 1))
        if (odd or (len(data) and not rows)) and (self.padding or self.places is not None):
            return Misfit(self._misfit(rows, len(data)))
        data = data.slice(0, len(data) - each * (self.padding or 0))
        result = data if _is_proto(output) else data.to_tensordict()
        return result if self.places is None else Placed(result, self.places.repeat(each))

    def _misfit(self, rows: int, back: int) -> str:
        wrong = f"{rows} rows, {self.padding or 0} of them padding, and {back} came back"
        return f"was given {wrong}: which came of which cannot be told; return as many for each row"


@dataclass(frozen=True)
class Placed:
    """A rank's result whose rows belong at ``places`` of the whole; equal places keep their order."""

    batch: Any
    places: np.ndarray


@dataclass(frozen=True)
class Misfit:
    """A result that cannot be put together with those of the others, and why."""

    wrong: str


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


@dataclass(frozen=True)
class Split:
    """How the batches of a call are split."""

    shares: Sequence[Share]
    keeps_order: bool
    padded: bool

    @classmethod
    def of(cls, values: Mapping[int | str, Any], parts: int, rule: Rule, *, padded: bool) -> Split:
        """The split of the batches among the arguments of a call, by the first of them.

        Raises:
            ArgumentError: when two have different numbers of rows.
        """
        rows = common_rows(values)
        first = next((_proto(value) for value in values.values() if is_batch(value)), None)
        shares = [Share(range(0))] * parts if first is None else shares_of(first, parts, rule, padded=padded)
        return cls(shares, rule.keeps_order or parts == 1 or not rows, any(share.padding for share in shares))

    @property
    def even(self) -> bool:
        """Whether every rank gets equally many rows, none of them padding, in the batch's order."""
        return self.keeps_order and not self.padded and len({len(share.rows) for share in self.shares}) == 1

    def shard(self, value: Any, index: int) -> Any:
        """The rank's shard of a batch: a batch alone where nothing more is to be said of it."""
        import numpy as np

        share = self.shares[index]
        data = _rows(_proto(value), share)
        batch = data if _is_proto(value) else data.to_tensordict()
        if self.keeps_order and not self.padded:
            return batch
        real = np.array(share.rows[: len(share.rows) - share.padding], dtype=np.int64)
        return Shard(batch, share.padding if self.padded else None, None if self.keeps_order else real)


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


def receive(args: Sequence[Any], kwargs: Mapping[str, Any], *, materialize: bool = True, own: bool = False) -> Received:
    """Open what a call carries: futures become their values, batches the rank's shard of them.

    With ``own``, the batches and arrays are copies, as they are wherever a process of its own receives them.

    Raises:
        ArgumentError: when two batches have different numbers of rows.
        DispatchError: when a value cannot be had from those who made it.
    """
    from dagrl.controller.future import DataProtoFuture

    values: dict[int | str, Any] = {**dict(enumerate(args)), **kwargs}
    orders: Orders = values.pop(ORDERS_KEY, Orders())
    if materialize:
        values = {k: v.get() if isinstance(v, DataProtoFuture) else v for k, v in values.items()}
    if orders.part is not None:
        values = orders.part.taken(values)
    elif orders.aligned:
        common_rows(values)
    if own:
        values = {which: own_copy(value) for which, value in values.items()}
    shard = next((value for value in values.values() if isinstance(value, Shard)), None)
    opened = {which: _opened(value) for which, value in values.items()}
    positional = tuple(value for which, value in opened.items() if isinstance(which, int))
    return Received(positional, {k: v for k, v in opened.items() if isinstance(k, str)}, shard, orders.returns)


def common_rows(values: Mapping[int | str, Any]) -> int:
    """The number of rows of every batch among the arguments; 0 where there is none.

    Raises:
        ArgumentError: when two differ.
    """
    rows = {which: len(_proto(value)) for which, value in values.items() if is_batch(value)}
    first = next(iter(rows.values()), 0)
    for which, count in rows.items():
        if count != first:
            raise ArgumentError(which, f"has {count} rows, but the first batch of the call has {first}")
    return first


def is_batch(value: Any) -> bool:
    """Whether the value is a DataProto or a TensorDict; loads neither."""
    return _is_proto(value) or isinstance(value, _loaded("tensordict", "TensorDictBase"))


def own_copy(value: Any) -> Any:
    """A copy of a batch, tensor or array; anything else is itself."""
    if isinstance(value, Shard):
        return Shard(copy.deepcopy(value.batch), value.padding, value.places)
    arrays = (*_loaded("torch", "Tensor"), *_loaded("numpy", "ndarray"))
    return copy.deepcopy(value) if is_batch(value) or isinstance(value, arrays) else value


def real_rows(data: DataProto) -> Bool[Tensor, " B"]:
    """True on the rows that were given, False on those that repeat others so that all ranks have equally many."""
    import torch

    if data.batch is None or PADDING_MASK not in data.batch.keys():  # noqa: SIM118 - a TensorDict iterates rows
        return torch.ones(len(data), dtype=torch.bool)
    return ~data.batch[PADDING_MASK]


def _loaded(module: str, name: str) -> tuple[type, ...]:
    """The class if its module is loaded: without it there are no instances."""
    found = sys.modules.get(module)
    return () if found is None else (vars(found)[name],)


def _is_proto(value: Any) -> bool:
    return isinstance(value, _loaded("dagrl.data.proto", "DataProto"))


def _proto(value: Any) -> DataProto:
    from dagrl.data.proto import DataProto

    return value if isinstance(value, DataProto) else DataProto.from_tensordict(value)


def _opened(value: Any) -> Any:
    if isinstance(value, Misfit):
        raise DispatchError(f"the worker that made this value {value.wrong}")
    if isinstance(value, Placed):
        return value.batch
    return value.opened() if isinstance(value, Shard) else value


def _rows(data: DataProto, share: Share) -> DataProto:
    """The rows of a share; repeated ones share no objects with others."""
    import torch

    from dagrl.data.objects import own_copies
    from dagrl.data.proto import DataProto

    if isinstance(share.rows, range):
        return data.slice(share.rows.start, share.rows.stop)
    rows = data.select_idxs(torch.tensor(share.rows, dtype=torch.int64))
    real = len(rows) - share.padding
    objects = {name: own_copies(column, real) for name, column in rows.non_tensor_batch.items()}
    return DataProto(rows.batch, objects, rows.meta_info)


def _marked(data: DataProto, padding: int) -> DataProto:
    """The batch with its last rows marked as padding, out of every loss and every group."""
    import torch
    from tensordict import TensorDict

    from dagrl.data.proto import DataProto
    from dagrl.data.tensordicts import tensors_of

    real = len(data) - padding
    columns = tensors_of(data.batch)
    changed = {PADDING_MASK: torch.arange(len(data)) >= real}
    for name, neutral in (("response_mask", False), ("group_ids", -1)):
        if padding and name in columns:
            changed[name] = _filled(columns[name], real, neutral)
    size = [len(data)] if data.batch is None else data.batch.batch_size
    if len(size) > 1:
        changed[PADDING_MASK] = changed[PADDING_MASK].view(-1, *[1] * (len(size) - 1)).expand(size).clone()
    return DataProto(TensorDict({**columns, **changed}, batch_size=size), data.non_tensor_batch, data.meta_info)


def _filled(column: Tensor, start: int, value: int) -> Tensor:
    """The column with one value in all rows from ``start`` on."""
    import torch

    if not column.is_nested:
        filled = column.clone()
        filled[start:] = value
        return filled
    values = column.values().clone()
    values[int(column.offsets()[start]) :] = value  # pyright: ignore[reportAttributeAccessIssue] - jagged tensors have them
    return torch.nested.nested_tensor_from_jagged(values, column.offsets())  # pyright: ignore[reportAttributeAccessIssue]


def _without_mask(data: DataProto) -> DataProto:
    if data.batch is None or PADDING_MASK not in data.batch.keys():  # noqa: SIM118 - a TensorDict iterates rows
        return data
    from dagrl.data.proto import DataProto

    batch = data.batch.exclude(PADDING_MASK)
    return DataProto(None if batch.is_empty() and data.non_tensor_batch else batch, data.non_tensor_batch, data.meta_info)
