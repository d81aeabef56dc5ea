"""JSON lines: what counts as a row, and where each begins."""

from __future__ import annotations

import json
import math
import zlib
from array import array
from bisect import bisect_right
from dataclasses import dataclass, field
from typing import Any, BinaryIO, NoReturn

from dagrl.errors import ConfigError, Problem
from dagrl.storage.row_faults import RowCheck, RowFault, RowFaults

_BOM = b"\xef\xbb\xbf"
_BLANK = b" \t\r\n"
_ONE_OBJECT = 'write one JSON object a line: {"prompt": ..., "answer": ...}'
_NO_NUMBER = "write null, a finite number, or leave the field out"


class LineNumbers:
    """The line of each row, from 1; memory grows only with the blank lines between rows."""

    def __init__(self) -> None:
        self._rows = array("q")
        self._skipped = array("q")

    def add(self, row: int, number: int) -> None:
        """Say on which line the next row is."""
        skipped = number - row - 1
        if skipped != (self._skipped[-1] if self._skipped else 0):
            self._rows.append(row)
            self._skipped.append(skipped)

    def __getitem__(self, row: int) -> int:
        place = bisect_right(self._rows, row)
        return row + 1 + (self._skipped[place - 1] if place else 0)


@dataclass(frozen=True)
class LineIndex:
    """Where each row begins and last where the file ends, what its bytes sum up to, and its line."""

    starts: array[int] = field(default_factory=lambda: array("q"))
    checksums: array[int] = field(default_factory=lambda: array("I"))
    numbers: LineNumbers = field(default_factory=LineNumbers)

    def add(self, place: int, line: bytes, number: int) -> None:
        """Take in the next row."""
        self.numbers.add(len(self.starts), number)
        self.starts.append(place)
        self.checksums.append(checksum(line))


def index_lines(url: str, file: BinaryIO, check: RowCheck) -> LineIndex:
    """Where the rows of a file are; every row is parsed and checked on the way.

    A row ends at a line feed alone; blank lines are no rows.

    Raises:
        ConfigError: naming the first bad lines and how many there are.
    """
    index, faults = LineIndex(), RowFaults(url)
    place = len(_BOM) if file.read(len(_BOM)) == _BOM else 0
    file.seek(place)
    for number, line in enumerate(file, 1):
        if line.strip(_BLANK):
            _refuse_list(url, line, first=not index.starts)
            index.add(place, line, number)
            with faults.at(f"line {number}"):
                check(parse_line(line))
        place += len(line)
    faults.raise_any()
    index.starts.append(place)
    return index


def checksum(line: bytes) -> int:
    """32 bits that change with the row, not with the white space after it."""
    return zlib.crc32(line.rstrip(_BLANK))


def parse_line(line: bytes) -> dict[str, Any]:
    """The row of a line.

    Raises:
        RowFault: when it is no UTF-8, no JSON, no object, holds a number or text that JSON does not allow, or a name
            twice.
    """
    try:
        row = _DECODER.decode(line.rstrip(_BLANK).decode())
    except UnicodeDecodeError as error:
        what = f"byte {error.start + 1} of the line is no UTF-8"
        raise RowFault(what, "save the file as UTF-8") from error
    except json.JSONDecodeError as error:
        raise RowFault(f"no valid JSON: {error.msg} at column {error.colno}", _ONE_OBJECT) from error
    except RecursionError as error:
        raise RowFault("the JSON is nested too deeply", "flatten the row") from error
    except ValueError as error:
        raise RowFault(f"no valid JSON: {error}", "write such a number as text") from error
    if not isinstance(row, dict):
        raise RowFault(f"the row is {_kind(row)}, not an object", _ONE_OBJECT)
    if b"\\u" in line:
        _refuse_surrogates(row)
    return row


def _refuse_list(url: str, line: bytes, *, first: bool) -> None:
    """One JSON list over many lines would otherwise give a fault for each of them."""
    if first and line.lstrip(_BLANK)[:1] == b"[":
        what = f"`{url}` holds one JSON list, not one object a line."
        raise ConfigError([Problem(what, fix=f"write one object a line: `jq -c '.[]' {url} > rows.jsonl`")])


def _refuse_surrogates(row: dict[str, Any]) -> None:
    try:
        json.dumps(row, ensure_ascii=False).encode()
    except UnicodeEncodeError as error:
        code = ord(error.object[error.start])
        raise RowFault(f"it holds half of a character, \\u{code:04x}", "write both halves, or drop it") from error


def _no_constant(name: str) -> NoReturn:
    raise RowFault(f"{name} is no JSON number", _NO_NUMBER)


def _finite(text: str) -> float:
    number = float(text)
    if not math.isfinite(number):
        raise RowFault(f"{text} is too large for a number", _NO_NUMBER)
    return number


def _each_name_once(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    """JSON leaves open which of two values counts; here neither is dropped unsaid."""
    fields = dict(pairs)
    if len(fields) < len(pairs):
        names = [name for name, _ in pairs]
        twice = next(name for name in fields if names.count(name) > 1)
        raise RowFault(f"it has `{twice}` twice", "keep one of them")
    return fields


def _kind(value: Any) -> str:
    return {list: "a list", str: "a text", type(None): "null", bool: "true or false"}.get(type(value), "a number")


_DECODER = json.JSONDecoder(parse_constant=_no_constant, parse_float=_finite, object_pairs_hook=_each_name_once)
