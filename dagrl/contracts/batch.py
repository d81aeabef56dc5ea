"""Made-up rows: every column of the legend, in itself consistent, and the ways in which the suite changes them."""

from __future__ import annotations

import copy
from collections.abc import Mapping
from dataclasses import dataclass, replace
from math import inf, nan

import numpy as np
import torch
from jaxtyping import Bool, Int64
from torch import Tensor

from dagrl.data.columns import ColumnType, pad_value
from dagrl.data.join import Widths, repad
from dagrl.data.objects import object_array

Column = Tensor | np.ndarray
#: What may stand at a place that nobody reads.
POISONS = (nan, inf, -inf, -200.0)


@dataclass(frozen=True)
class Batch:
    """Rows as the executor hands them to a node: columns of equal widths and what every edge carries."""

    columns: Mapping[str, Column]
    types: Mapping[str, ColumnType]
    widths: Widths
    group_ids: Int64[Tensor, " B"]
    seeds: Int64[Tensor, " B"]
    positions: Int64[Tensor, " B"]

    @property
    def num_rows(self) -> int:
        """Rows of every column."""
        return len(self.group_ids)

    def tensor(self, name: str) -> Tensor:
        """A tensor column."""
        column = self.columns[name]
        if not isinstance(column, Tensor):
            raise TypeError(f"`{name}` is an object column")
        return column

    def take(self, index: Int64[Tensor, " m"]) -> Batch:
        """The rows at ``index``."""
        columns = {name: _rows(column, index) for name, column in self.columns.items()}
        return replace(
            self,
            columns=columns,
            group_ids=self.group_ids[index],
            seeds=self.seeds[index],
            positions=self.positions[index],
        )

    def with_columns(self, columns: Mapping[str, Column]) -> Batch:
        """The same rows with some columns changed."""
        return replace(self, columns={**self.columns, **columns})

    def widened(self, left: int, right: int) -> Batch:
        """P wider by ``left`` and T by ``right``, filled as a join pads."""
        want = Widths(self.widths.P + left, self.widths.T + right)
        columns = {name: self._repadded(name, column, want) for name, column in self.columns.items()}
        return replace(self, columns=columns, widths=want)

    def _repadded(self, name: str, column: Column, want: Widths) -> Column:
        if not isinstance(column, Tensor):
            return column
        kind = self.types[name]
        return repad(column, kind.dims, self.widths, want, pad_value(name, kind.dtype))

    def poisoned(self, names: frozenset[str], poison: float) -> Batch:
        """Float columns of ``names`` with ``poison`` at every place that no one may read."""
        changed: dict[str, Column] = {}
        for name in names:
            column, places = self.columns[name], self.places(self.types[name])
            if isinstance(column, Tensor) and column.is_floating_point() and places is not None:
                places = places.reshape(*places.shape, *[1] * (column.ndim - 2))
                changed[name] = column.masked_fill(~places, poison)
        return self.with_columns(changed)

    def places(self, kind: ColumnType) -> Bool[Tensor, "B W"] | None:
        """The places of a column that mean something: trained ones of a float column, else those of tokens."""
        if len(kind.dims) < 2 or kind.dims[1] not in ("P", "T", "S"):
            return None
        attended = self.tensor("attention_mask")
        response = self.tensor("response_mask") if kind.dtype.startswith(("f", "bf")) else attended[:, self.widths.P :]
        return {"P": attended[:, : self.widths.P], "T": response, "S": attended}[kind.dims[1]]

    def copied(self) -> Batch:
        """A copy that shares nothing."""
        columns = {name: copy_column(column) for name, column in self.columns.items()}
        return replace(
            self,
            columns=columns,
            group_ids=self.group_ids.clone(),
            seeds=self.seeds.clone(),
            positions=self.positions.clone(),
        )


def _rows(column: Column, index: Int64[Tensor, " m"]) -> Column:
    return column[index] if isinstance(column, Tensor) else column[index.numpy()]


def copy_column(column: Column) -> Column:
    """A copy that shares nothing, objects included."""
    if isinstance(column, Tensor):
        return column.clone()
    return object_array([copy.deepcopy(value) for value in column])


def sub_batches(batch: Batch) -> dict[int, Int64[Tensor, " m"]]:
    """Where the rows of each group are."""
    return {int(group): (batch.group_ids == group).nonzero().flatten() for group in batch.group_ids.unique()}


def shuffled_order(num_rows: int) -> Int64[Tensor, " B"]:
    """One random order of the rows, always the same."""
    return torch.randperm(num_rows, generator=torch.Generator().manual_seed(1))


def untrained(batch: Batch) -> Batch:
    """The rows, the first without a trained token."""
    mask = batch.tensor("response_mask").clone()
    mask[0] = False
    return batch.with_columns({"response_mask": mask})


def unscorable(batch: Batch, names: frozenset[str]) -> Batch:
    """The rows, the first without a reward."""
    changed = {name: batch.tensor(name).clone() for name in names}
    for rewards in changed.values():
        rewards[0] = nan
    return batch.with_columns(changed)


def reward_names(batch: Batch, read: frozenset[str]) -> frozenset[str]:
    """The columns among those read that hold one reward for each row."""
    named = {name for name in read if name == "rewards" or name.endswith("_rewards")}
    return frozenset(name for name in named if str(batch.types[name]) == "f32[B]")
