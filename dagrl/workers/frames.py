"""The columns that a process holds between ops: for each call of a step its rows, widths and a DataProto."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np
import torch
from jaxtyping import Int64
from torch import Tensor

from dagrl.compiler.plan import Input, LoopOp, RunOp
from dagrl.data.columns import DTYPES, PAD_SIDES, ColumnType, pad_value
from dagrl.data.join import Widths, intersect_rows, repad, select_rows, take
from dagrl.data.proto import DataProto
from dagrl.graph.pipeline import Pipeline
from dagrl.workers.node_runner import Columns

#: Shards that came from other processes, by the call that wrote them.
Arrivals = Mapping[str, Sequence["Shard"]]


@dataclass(frozen=True)
class Rows:
    """The rows of a call: unique ids, and the group of each."""

    row_ids: Int64[Tensor, " B"]
    group_ids: Int64[Tensor, " B"]

    def keep(self, row_ids: Int64[Tensor, " M"]) -> Rows:
        """Just these rows, in their order."""
        index = select_rows(self.row_ids, row_ids)
        return self if index is None else Rows(row_ids, self.group_ids[index])

    def among(self, row_ids: Int64[Tensor, " M"]) -> Rows:
        """The rows that are among these, in their order here."""
        found = torch.isin(self.row_ids, row_ids)
        return Rows(self.row_ids[found], self.group_ids[found])

    def __len__(self) -> int:
        return len(self.row_ids)


@dataclass
class Shard:
    """Some rows of what a call has written; the payload that moves between processes."""

    rows: Rows
    widths: Widths
    data: DataProto


class Frames:
    """What the calls of one step have written in this process and somebody still reads."""

    def __init__(self, pipeline: Pipeline) -> None:
        self._pipeline = pipeline
        self._shards: dict[str, Shard] = {}
        self._aside: dict[str, list[Shard]] = {}

    def put(self, call: str, rows: Rows, widths: Widths, columns: Columns) -> None:
        """Keep what a call has written."""
        tensors = {name: column for name, column in columns.items() if isinstance(column, Tensor)}
        objects = {name: column for name, column in columns.items() if not isinstance(column, Tensor)}
        self._shards[call] = Shard(rows, widths, DataProto.from_dict(tensors=tensors, non_tensors=objects))

    def rows_of(self, op: RunOp) -> Rows:
        """The rows of an op that are here: those of its source that passed its filters."""
        rows = self._shards[op.source].rows
        if not op.filters:
            return rows
        kept = [self._shards[name].rows.row_ids for name in op.filters]
        return rows.keep(intersect_rows([rows.row_ids, *kept]))

    def gather(self, reads: Sequence[Input], rows: Rows, arrivals: Arrivals) -> tuple[Columns, Widths]:
        """The columns an op reads, from here and from elsewhere, aligned on its rows and padded to the widest."""
        wide = {read.call for read in reads if self._type(read).dims[1:]}
        widths = [shard.widths for call in sorted(wide) for shard in self._pieces(call, arrivals)]
        widest = Widths(max((each.P for each in widths), default=0), max((each.T for each in widths), default=0))
        return {
            read.column: _column(self._pieces(read.call, arrivals), read.source, self._type(read), rows, widest)
            for read in reads
        }, widest

    def cut(self, call: str, columns: Sequence[str], row_ids: Int64[Tensor, " M"]) -> Shard:
        """A copy of some rows and columns of a call, to be sent elsewhere."""
        shard = self._shards[call]
        data = _selected(shard.data, columns)
        index = select_rows(shard.rows.row_ids, row_ids)
        return Shard(shard.rows.keep(row_ids), shard.widths, data if index is None else data.select_idxs(index))

    def free(self, columns: Sequence[str]) -> int:
        """Let go of columns, given as ``call.column``, as far as they are here; the bytes of their tensors."""
        freed = 0
        for name in columns:
            call, column = name.rsplit(".", 1)
            if call not in self._shards:
                continue
            data = self._shards[call].data
            is_tensor = column not in data.non_tensor_batch
            gone = data.pop(batch_keys=[column]) if is_tensor else data.pop(non_tensor_batch_keys=[column])
            freed += sum(tensor.nbytes for tensor in gone.batch.values()) if gone.batch is not None else 0
        return freed

    def end_round(self, loop: LoopOp, passed: Int64[Tensor, " K"]) -> None:
        """Set aside what the loop keeps of the rows that have passed; all else of its round is let go."""
        for call, columns in _kept_columns(loop).items():
            if call in self._shards:
                self._aside.setdefault(call, []).append(self._passed(call, columns, passed))
        for op in loop.ops:
            self._shards.pop(op.call, None)

    def end_loop(self, loop: LoopOp, kept: Int64[Tensor, " K"]) -> None:
        """Have those rows of all rounds stand as what the calls have written, and as what the loop lets pass."""
        for call, columns in _kept_columns(loop).items():
            if call in self._aside:
                self._join_rounds(call, columns, kept)
        if loop.source in self._shards:
            self.put(loop.id, self._shards[loop.source].rows, Widths(0, 0), {})

    def _passed(self, call: str, columns: Sequence[str], passed: Int64[Tensor, " K"]) -> Shard:
        shard = self._shards[call]
        rows = shard.rows.among(passed)
        return self.cut(call, columns, rows.row_ids) if columns else Shard(rows, shard.widths, DataProto())

    def _join_rounds(self, call: str, columns: Sequence[str], kept: Int64[Tensor, " K"]) -> None:
        pieces = self._aside.pop(call)
        rows = _all_rows(pieces).among(kept)
        widest = Widths(max(piece.widths.P for piece in pieces), max(piece.widths.T for piece in pieces))
        types = {name: self._pipeline.call(call).column_type(name) for name in columns}
        self.put(call, rows, widest, {name: _column(pieces, name, kind, rows, widest) for name, kind in types.items()})

    @property
    def num_bytes(self) -> int:
        """Those of the tensors that are here."""
        shards = [*self._shards.values(), *(shard for rounds in self._aside.values() for shard in rounds)]
        batches = [shard.data.batch for shard in shards]
        return sum(tensor.nbytes for batch in batches if batch is not None for tensor in batch.values())

    def _type(self, read: Input) -> ColumnType:
        return self._pipeline.call(read.call).column_type(read.source)

    def _pieces(self, call: str, arrivals: Arrivals) -> list[Shard]:
        here = [self._shards[call]] if call in self._shards else []
        return [*here, *arrivals.get(call, ())]


def _kept_columns(loop: LoopOp) -> dict[str, list[str]]:
    """What a loop keeps of each call; of its source also if that is the rows alone."""
    kept: dict[str, list[str]] = {loop.source: []}
    for name in loop.keeps:
        call, column = name.rsplit(".", 1)
        kept.setdefault(call, []).append(column)
    return kept


def _all_rows(pieces: Sequence[Shard]) -> Rows:
    return Rows(torch.cat([p.rows.row_ids for p in pieces]), torch.cat([p.rows.group_ids for p in pieces]))


def _selected(data: DataProto, columns: Sequence[str]) -> DataProto:
    objects = [name for name in columns if name in data.non_tensor_batch]
    return data.select([name for name in columns if name not in data.non_tensor_batch], objects)


def _column(
    pieces: Sequence[Shard], name: str, column_type: ColumnType, rows: Rows, widest: Widths
) -> Tensor | np.ndarray:
    if not pieces:
        return _no_rows(column_type, widest)
    have = pieces[0].rows.row_ids if len(pieces) == 1 else torch.cat([piece.rows.row_ids for piece in pieces])
    index = select_rows(have, rows.row_ids)
    if column_type.is_object:
        return _read_only(take(_joined([piece.data.non_tensor_batch[name] for piece in pieces]), index))
    if len(pieces) == 1:  # rows first: fewer of them are padded
        return _padded(take(_tensor(pieces[0].data, name), index), name, column_type, pieces[0].widths, widest)
    wide = [_padded(_tensor(piece.data, name), name, column_type, piece.widths, widest) for piece in pieces]
    return take(torch.cat(wide), index)


def _padded(column: Tensor, name: str, column_type: ColumnType, have: Widths, want: Widths) -> Tensor:
    if PAD_SIDES.keys().isdisjoint(column_type.dims):
        return column
    return repad(column, column_type.dims, have, want, pad_value(name, column_type.dtype))


def _no_rows(column_type: ColumnType, widest: Widths) -> Tensor | np.ndarray:
    if column_type.is_object:
        return _read_only(np.empty(0, dtype=object))
    sizes = {"B": 0, "P": widest.P, "T": widest.T, "S": widest.S}
    shape = [sizes.get(dim, 0) for dim in column_type.dims]
    return torch.empty(shape, dtype=getattr(torch, DTYPES[column_type.dtype]))


def _joined(columns: Sequence[np.ndarray]) -> np.ndarray:
    return columns[0] if len(columns) == 1 else np.concatenate(columns)


def _read_only(column: np.ndarray) -> np.ndarray:
    """The same objects in an array whose places cannot be assigned."""
    view = column.view()
    view.flags.writeable = False
    return view


def _tensor(data: DataProto, name: str) -> Tensor:
    if data.batch is None:
        raise KeyError(name)
    return data.batch[name]
