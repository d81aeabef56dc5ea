"""Which rows of a batch each rank gets: blocks in order, whole groups, or equal work; equal numbers by padding."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from itertools import pairwise
from typing import TYPE_CHECKING, Any

from dagrl.errors import DispatchError

if TYPE_CHECKING:
    from jaxtyping import Int64
    from torch import Tensor

    from dagrl.data.proto import DataProto

#: ``weigh(batch)`` says what each row costs, as integers of shape (rows,).
Weigh = Callable[["DataProto"], "Int64[Tensor, ' B']"]


@dataclass(frozen=True)
class Rule:
    """How rows are spread: those equal in column ``group_by`` stay together, and ranks get equal sums of ``balance``.

    Without either, each rank gets a block of neighbouring rows.
    """

    group_by: str | None = None
    balance: Weigh | None = None

    @property
    def keeps_order(self) -> bool:
        """Whether the ranks' rows in rank order are the batch's."""
        return self.group_by is None and self.balance is None


#: Blocks of neighbouring rows.
IN_ORDER = Rule()


@dataclass(frozen=True)
class Share:
    """The rows of one rank by their places in the batch; the last ``padding`` of them repeat others."""

    rows: Sequence[int]
    padding: int = 0


def token_work(data: DataProto) -> Int64[Tensor, " B"]:
    """The tokens of each row, as `attention_mask` has them: what `register(balance=token_work)` spreads evenly."""
    if data.batch is None or "attention_mask" not in data.batch.keys():  # noqa: SIM118 - a TensorDict iterates rows
        raise DispatchError("`token_work` counts tokens in the column `attention_mask`, which the batch lacks")
    return data.batch["attention_mask"].long().sum(-1)


def shares_of(data: DataProto, parts: int, rule: Rule, *, padded: bool) -> list[Share]:
    """The share of each of ``parts`` ranks; with ``padded`` all are equally long.

    Padding repeats the batch's rows from the first on where blocks are cut, a rank's own rows under a rule.

    Raises:
        DispatchError: when the rule's column is missing or its weights are no integers, one for each row.
    """
    if rule.keeps_order or parts == 1:
        return _blocks(len(data), parts, padded=padded)
    found = _spread(data, parts, rule)
    longest = max(map(len, found)) if padded else 0
    return [_padded(own, longest, len(data)) for own in found]


def _blocks(rows: int, parts: int, *, padded: bool) -> list[Share]:
    if not padded or rows % parts == 0:
        size, longer = divmod(rows, parts)
        bounds = [part * size + min(part, longer) for part in range(parts + 1)]
        return [Share(range(start, end)) for start, end in pairwise(bounds)]
    size = -(-rows // parts)
    return [_block(part * size, size, rows) for part in range(parts)]


def _block(start: int, size: int, rows: int) -> Share:
    end = start + size
    if end <= rows:
        return Share(range(start, end))
    return Share(tuple(at % rows for at in range(start, end)), padding=min(size, end - rows))


def _padded(own: Sequence[int], longest: int, rows: int) -> Share:
    source = own or range(rows)
    added = max(longest - len(own), 0)
    return Share((*own, *(source[at % len(source)] for at in range(added))), added)


def _spread(data: DataProto, parts: int, rule: Rule) -> list[list[int]]:
    import torch

    from dagrl.ops.balance import balanced_groups, balanced_partition

    rows = len(data)
    weights = torch.ones(rows, dtype=torch.int64) if rule.balance is None else _weights(data, rule.balance)
    if rule.group_by is None:
        return balanced_partition(weights, parts, equal_size=True)
    groups = torch.tensor(_codes(_column(data, rule.group_by)), dtype=torch.int64)
    return balanced_groups(weights, groups, parts, equal_size=rule.balance is not None)


def _weights(data: DataProto, weigh: Weigh) -> Int64[Tensor, " B"]:
    import torch

    weights = torch.as_tensor(weigh(data))
    if weights.shape != (len(data),) or weights.dtype.is_floating_point or weights.dtype == torch.bool:
        found = f"shape {tuple(weights.shape)} and {weights.dtype}"
        raise DispatchError(f"`balance` gave weights of {found}: give one integer for each of the {len(data)} rows")
    return weights.long().cpu()


def _column(data: DataProto, name: str) -> list[Any]:
    """The values of a tensor or object column, one for each row."""
    from dagrl.data.tensordicts import tensors_of

    columns = {**tensors_of(data.batch), **data.non_tensor_batch}
    if name not in columns:
        raise DispatchError(f"`group_by={name!r}`: the batch has no such column, it has {', '.join(sorted(columns))}")
    return columns[name].tolist()


def _codes(values: list[Any]) -> list[int]:
    """Equal numbers for equal values."""
    numbers: dict[str, int] = {}
    return [numbers.setdefault(repr(value), len(numbers)) for value in values]
