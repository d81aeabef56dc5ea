"""The columns that a step holds between ops: rows, widths and a DataProto for each call."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from torch import Tensor

from dagrl.compiler.plan import Input, RunOp
from dagrl.data.columns import PAD_SIDES, ColumnType, pad_value
from dagrl.data.join import Widths, intersect_rows, repad, select_rows, take
from dagrl.data.proto import DataProto
from dagrl.graph.pipeline import Pipeline
from dagrl.workers.node_runner import Columns


@dataclass(frozen=True)
class Rows:
    """The rows of a call: unique ids, and the group of each."""

    row_ids: Tensor
    group_ids: Tensor

    def keep(self, row_ids: Tensor) -> Rows:
        """Just these rows, in their order."""
        index = select_rows(self.row_ids, row_ids)
        return self if index is None else Rows(row_ids, self.group_ids[index])


@dataclass
class _Frame:
    rows: Rows
    widths: Widths
    data: DataProto


class Frames:
    """What every call of one step has written and somebody still reads."""

    def __init__(self, pipeline: Pipeline) -> None:
        self._pipeline = pipeline
        self._frames: dict[str, _Frame] = {}

    def put(self, call: str, rows: Rows, widths: Widths, columns: Columns) -> None:
        """Keep what a call has written."""
        tensors = {name: column for name, column in columns.items() if isinstance(column, Tensor)}
        objects = {name: column for name, column in columns.items() if not isinstance(column, Tensor)}
        data = DataProto.from_dict(tensors=tensors, non_tensors=objects)
        self._frames[call] = _Frame(rows, widths, data)

    def rows_of(self, op: RunOp) -> Rows:
        """The rows that an op sees: those of its source that passed its filters."""
        rows = self._frames[op.source].rows
        if not op.filters:
            return rows
        kept = [self._frames[name].rows.row_ids for name in op.filters]
        return rows.keep(intersect_rows([rows.row_ids, *kept]))

    def gather(self, reads: Sequence[Input], rows: Rows) -> tuple[Columns, Widths]:
        """The columns an op reads, aligned on its rows and padded to the widest."""
        frames = [self._frames[read.call] for read in reads if self._type(read).dims[1:]]
        widths = Widths(
            max((frame.widths.P for frame in frames), default=0), max((frame.widths.T for frame in frames), default=0)
        )
        return {read.column: self._column(read, rows, widths) for read in reads}, widths

    def free(self, columns: Sequence[str]) -> int:
        """Let go of columns, given as ``call.column``; the bytes of their tensors."""
        freed = 0
        for name in columns:
            call, column = name.rsplit(".", 1)
            data = self._frames[call].data
            is_tensor = column not in data.non_tensor_batch
            gone = data.pop(batch_keys=[column]) if is_tensor else data.pop(non_tensor_batch_keys=[column])
            freed += sum(tensor.nbytes for tensor in gone.batch.values()) if gone.batch is not None else 0
        return freed

    def _type(self, read: Input) -> ColumnType:
        return self._pipeline.call(read.call).column_type(read.source)

    def _column(self, read: Input, rows: Rows, widths: Widths) -> Tensor | np.ndarray:
        frame, column_type = self._frames[read.call], self._type(read)
        index = select_rows(frame.rows.row_ids, rows.row_ids)
        if column_type.is_object:
            return _read_only(take(frame.data.non_tensor_batch[read.source], index))
        column = take(_tensor(frame.data, read.source), index)
        if PAD_SIDES.keys().isdisjoint(column_type.dims):
            return column
        return repad(column, column_type.dims, frame.widths, widths, pad_value(read.source, column_type.dtype))


def _read_only(column: np.ndarray) -> np.ndarray:
    """The same objects in an array whose places cannot be assigned."""
    view = column.view()
    view.flags.writeable = False
    return view


def _tensor(data: DataProto, name: str) -> Tensor:
    if data.batch is None:
        raise KeyError(name)
    return data.batch[name]
