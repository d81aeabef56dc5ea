"""What a rank is sent of a split batch, and what it sends back: padding is added, marked and taken off here."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from dagrl.controller.batches import as_proto, common_rows, is_batch, is_proto, own_copy
from dagrl.controller.padding import marked_padding, without_mask
from dagrl.controller.shares import Rule, Share, shares_of
from dagrl.errors import WorkerError

if TYPE_CHECKING:
    import numpy as np

    from dagrl.data.proto import DataProto


@dataclass(frozen=True)
class Shard:
    """A rank's rows of a batch. ``padding`` of them, the last, are repeated ones; None where no rank has any.

    ``places`` are where the others stand in the batch, None where they follow each other in rank order.
    """

    batch: Any
    padding: int | None = None
    places: np.ndarray | None = None

    def copied(self) -> Shard:
        """The shard with a batch of its own."""
        return Shard(own_copy(self.batch), self.padding, self.places)

    def opened(self) -> Any:
        """The batch as the worker's method gets it: padding rows marked, without trained tokens or a group."""
        if self.padding is None:
            return self.batch
        data = marked_padding(as_proto(self.batch), self.padding)
        return data if is_proto(self.batch) else data.to_tensordict()

    def answered(self, output: Any) -> Any:
        """The worker's result without what came of padding, and with its rows' places."""
        if not is_batch(output):
            return output
        data, rows = without_mask(as_proto(output)), len(self.batch)
        each, odd = divmod(len(data), max(rows, 1))
        if (odd or (len(data) and not rows)) and (self.padding or self.places is not None):
            return Misfit(self._misfit(rows, len(data)))
        data = data.slice(0, len(data) - each * (self.padding or 0))
        result = data if is_proto(output) else data.to_tensordict()
        return result if self.places is None else Placed(result, self.places.repeat(each))

    def _misfit(self, rows: int, back: int) -> str:
        wrong = f"{rows} rows, {self.padding or 0} of them padding, and {back} came back"
        return f"was given {wrong}: which came of which cannot be told; return as many for each row"


@dataclass(frozen=True)
class Placed:
    """A rank's result whose rows belong at ``places`` of the whole; equal places keep their order."""

    batch: Any
    places: np.ndarray

    def copied(self) -> Placed:
        """The result with a batch of its own."""
        return Placed(own_copy(self.batch), self.places)


@dataclass(frozen=True)
class Misfit:
    """A result that cannot be put together with those of the others, and why."""

    wrong: str


@dataclass(frozen=True)
class NotMade:
    """What is in the place of a result, in one process, when the call that was to give it has failed."""

    failure: WorkerError


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
        first = next((as_proto(value) for value in values.values() if is_batch(value)), None)
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
        data = _rows(as_proto(value), share)
        batch = data if is_proto(value) else data.to_tensordict()
        if self.keeps_order and not self.padded:
            return batch
        real = np.array(share.rows[: len(share.rows) - share.padding], dtype=np.int64)
        return Shard(batch, share.padding if self.padded else None, None if self.keeps_order else real)


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
