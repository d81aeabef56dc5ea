"""The rows of tensor columns, dense and jagged alike: chosen, cut into parts, stacked."""

from collections.abc import Iterable, Mapping, Sequence

import torch
from jaxtyping import Int64
from torch import Tensor

from dagrl.data.jagged import (
    Jagged,
    SharedOffsets,
    is_jagged,
    jagged_cut,
    jagged_parts,
    jagged_rows,
    jagged_stack,
    jagged_width,
)
from dagrl.data.taking import taken
from dagrl.errors import DataError

#: Tensor columns by name.
Tensors = dict[str, Tensor]


def take_rows(columns: Mapping[str, Tensor], index: Int64[Tensor, " m"]) -> Tensors:
    """The rows at checked positions, in that order, copied."""
    shared = SharedOffsets()
    return {
        name: shared.column(jagged_rows(jagged_parts(column), index))
        if is_jagged(column)
        else taken(column, 0, index.to(column.device))
        for name, column in columns.items()
    }


def slice_rows(columns: Mapping[str, Tensor], rows: slice) -> Tensors:
    """The rows of a slice with a positive step; views, but for jagged columns and a step above 1."""
    shared = SharedOffsets()
    return {
        name: shared.column(_jagged_slice(jagged_parts(column), rows)) if is_jagged(column) else column[rows]
        for name, column in columns.items()
    }


def cut_rows(columns: Mapping[str, Tensor], sizes: Sequence[int]) -> list[Tensors]:
    """All columns in parts of so many rows each, in order; the parts are views. The sizes sum up to the rows."""
    if not columns:
        return [{} for _ in sizes]
    shared = [SharedOffsets() for _ in sizes]
    pieces = [_cut(column, sizes, shared) for column in columns.values()]
    return [dict(zip(columns, part, strict=True)) for part in zip(*pieces, strict=True)]


def row_of(columns: Mapping[str, Tensor], row: int) -> Tensors:
    """One row, without the row dim; a view."""
    return {name: _one_row(column, row) for name, column in columns.items()}


def stack_rows(parts: Sequence[Mapping[str, Tensor]], names: Iterable[str]) -> Tensors:
    """The rows of all parts in order.

    Raises:
        DataError: naming a column and the part whose dtype, row shape, layout or device is another than in part 0.
    """
    shared = SharedOffsets()
    return {name: _stack(name, [part[name] for part in parts], shared) for name in names}


def shape_text(column: Tensor) -> str:
    """The shape as a tuple, with ``*`` for a ragged dim."""
    sizes = ["*" if isinstance(size, torch.SymInt) else str(size) for size in column.shape]
    return f"({', '.join(sizes)}{',' if len(sizes) == 1 else ''})"


def num_bytes(column: Tensor) -> int:
    """The bytes of the elements, without offsets."""
    return jagged_parts(column).values.nbytes if is_jagged(column) else column.nbytes


def _jagged_slice(jagged: Jagged, rows: slice) -> Jagged:
    start, end, step = rows.indices(len(jagged.offsets) - 1)
    if step != 1:
        return jagged_rows(jagged, torch.tensor(range(start, end, step), dtype=torch.int64))
    end = max(start, end)
    return jagged_cut(jagged, [start, end - start])[1]


def _cut(column: Tensor, sizes: Sequence[int], shared: Sequence[SharedOffsets]) -> Sequence[Tensor]:
    if not is_jagged(column):
        return column.split_with_sizes(sizes)
    parts = jagged_cut(jagged_parts(column), sizes)
    return [offsets.column(part) for offsets, part in zip(shared, parts, strict=True)]


def _one_row(column: Tensor, row: int) -> Tensor:
    if not is_jagged(column):
        return column[row]
    parts = jagged_parts(column)
    begin, end = parts.offsets[row : row + 2].tolist()
    return parts.values.narrow(parts.dim - 1, begin, end - begin)


def _stack(name: str, values: Sequence[Tensor], shared: SharedOffsets) -> Tensor:
    if not all(_stackable(value, values[0]) for value in values):
        return _stack_jagged(name, values, shared)
    return torch.cat(list(values))


def _stackable(value: Tensor, first: Tensor) -> bool:
    """True for dense tensors that differ in their rows only; cheaper than to say what differs."""
    return (
        value.dtype is first.dtype
        and value.layout is first.layout is torch.strided
        and value.shape[1:] == first.shape[1:]
        and value.device == first.device
    )


def _stack_jagged(name: str, values: Sequence[Tensor], shared: SharedOffsets) -> Tensor:
    """The jagged column, or the error that names what differs."""
    jagged = [jagged_parts(value) if is_jagged(value) else None for value in values]
    traits = [_traits(value, parts) for value, parts in zip(values, jagged, strict=True)]
    for number, trait in enumerate(traits):
        for what in trait:
            mine, theirs = traits[0][what], trait[what]
            if mine != theirs:
                raise DataError(f"concat: column `{name}` has {what} {mine} in part 0 and {theirs} in part {number}")
    ragged = [parts for parts in jagged if parts is not None]
    return shared.column(jagged_stack(ragged)) if ragged else torch.cat(list(values))


def _traits(value: Tensor, jagged: Jagged | None) -> dict[str, object]:
    """What the parts of a column must have in common; the layout first, since widths of two layouts do not compare."""
    width = tuple(value.shape[1:]) if jagged is None else jagged_width(jagged)
    return {"layout": value.layout, "dtype": value.dtype, "width": width, "device": value.device}
