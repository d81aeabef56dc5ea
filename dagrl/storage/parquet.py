"""Parquet: unpacked once, in one streaming pass, into rows that can be read at random.

A step reads rows from all over the data. From parquet itself each would cost a whole row group.
"""

from __future__ import annotations

import pickle
from array import array
from collections.abc import Iterator
from typing import Any, BinaryIO, Literal

from dagrl.errors import ConfigError, Problem
from dagrl.storage.row_faults import RowCheck, RowFault, RowFaults
from dagrl.storage.spool import Spool

_BATCH_ROWS = 256
_BUFFER_BYTES = 1 << 20
#: A map becomes a dict like an object; one with a key twice is refused.
_Maps = Literal["strict"] | None
_NO_PYTHON_FORM = (ValueError, OverflowError, KeyError)
_Converted = dict[str, Any] | RowFault


def unpack_rows(url: str, file: BinaryIO, check: RowCheck) -> tuple[BinaryIO, array[int]]:
    """A nameless temporary file of pickled rows, and where each begins and the last ends; every row is checked.

    Raises:
        ConfigError: when it is no parquet file, or naming the first bad rows and how many there are.
    """
    starts, faults = array("q"), RowFaults(url)
    spool = Spool(url)
    place = 0
    for row in _rows(url, file):
        starts.append(place)
        with faults.at(f"row {len(starts)}"):
            if isinstance(row, RowFault):
                raise row
            check(row)
            place += spool.write(pickle.dumps(row, pickle.HIGHEST_PROTOCOL))
    faults.raise_any()
    starts.append(place)
    return spool.finish(), starts


def _rows(url: str, file: BinaryIO) -> Iterator[_Converted]:
    """The rows one after the other; memory holds one batch, whatever the size of a row group."""
    import pyarrow as pa
    from pyarrow.parquet import ParquetFile

    try:
        table = ParquetFile(file, buffer_size=_BUFFER_BYTES, pre_buffer=False)
        _refuse_twins(url, table.schema_arrow.names)
        # pyarrow converts far faster where no type is asked for maps.
        maps = "strict" if any("map<" in str(column.type) for column in table.schema_arrow) else None
        for batch in table.iter_batches(batch_size=_BATCH_ROWS, use_threads=False):
            yield from _converted(batch, maps)
    except (pa.ArrowException, OSError) as error:
        reason = (str(error).splitlines() or ["no message"])[0].rstrip(".")
        what = f"`{url}` is no readable parquet file: {reason}."
        raise ConfigError([Problem(what, fix="write or copy it again")]) from error


def _refuse_twins(url: str, names: list[str]) -> None:
    twice = sorted({name for name in names if names.count(name) > 1})
    if twice:
        shown = ", ".join(f"`{name}`" for name in twice)
        raise ConfigError([Problem(f"`{url}` has several columns of one name: {shown}.", fix="keep one of each")])


def _converted(batch: Any, maps: _Maps) -> list[_Converted]:
    """The rows as Python values; one by one where a value has no Python form, to tell which row it is."""
    try:
        return batch.to_pylist(maps_as_pydicts=maps)
    except _NO_PYTHON_FORM:
        return [_one(batch.slice(offset, 1), maps) for offset in range(batch.num_rows)]


def _one(batch: Any, maps: _Maps) -> _Converted:
    try:
        return batch.to_pylist(maps_as_pydicts=maps)[0]
    except _NO_PYTHON_FORM as error:
        reason = error.args[0] if isinstance(error, KeyError) else error
        return RowFault(f"a value cannot be read: {reason}", "write it as UTF-8 text or as a plain number")
