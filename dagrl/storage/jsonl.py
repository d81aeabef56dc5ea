"""JSON lines: what counts as a row, and where each begins."""

from __future__ import annotations

import json
import math
from array import array
from typing import Any, BinaryIO, NoReturn

from dagrl.errors import ConfigError, Problem
from dagrl.storage.row_faults import RowCheck, RowFault, RowFaults

_BOM = b"\xef\xbb\xbf"
_BLANK = b" \t\r\n"
_ONE_OBJECT = 'write one JSON object a line: {"prompt": ..., "answer": ...}'
_NO_NUMBER = "write null, a finite number, or leave the field out"


def index_lines(url: str, file: BinaryIO, check: RowCheck) -> array[int]:
    """Where each row begins, and last where the file ends; every row is parsed and checked on the way.

    A row ends at a line feed alone; blank lines are no rows.

    Raises:
        ConfigError: naming the first bad lines and how many there are.
    """
    starts, faults = array("q"), RowFaults(url)
    place = len(_BOM) if file.read(len(_BOM)) == _BOM else 0
    file.seek(place)
    for number, line in enumerate(file, 1):
        if line.strip(_BLANK):
            _refuse_list(url, line, first=not starts)
            starts.append(place)
            with faults.at(f"line {number}"):
                check(parse_line(line))
        place += len(line)
    faults.raise_any()
    starts.append(place)
    return starts


def parse_line(line: bytes) -> dict[str, Any]:
    """The row of a line.

    Raises:
        RowFault: when it is no UTF-8, no JSON, no object, or holds a number or text that JSON does not allow.
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


def line_number(file: BinaryIO, place: int) -> int:
    """The number of the line that begins at ``place``."""
    file.seek(0)
    number = 1
    while (left := place - file.tell()) > 0:
        number += file.read(min(left, 1 << 20)).count(b"\n")
    return number


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


def _kind(value: Any) -> str:
    return {list: "a list", str: "a text", type(None): "null", bool: "true or false"}.get(type(value), "a number")


_DECODER = json.JSONDecoder(parse_constant=_no_constant, parse_float=_finite)
