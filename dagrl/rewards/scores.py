"""From what a function returned for a row to its score: a finite number, no score by choice, or a failure."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence, Set
from dataclasses import dataclass, field
from itertools import islice
from typing import Any, SupportsFloat, cast

#: The key of a dict result that holds the reward.
SCORE = "score"
_LARGEST = 3.4028234663852886e38
_TEXT, _ITEMS, _DEPTH = 2000, 100, 4
#: Types that need no closer look, which would cost more than a simple function itself.
_NUMBERS = (float, int, bool)


class BadResult(Exception):
    """A returned value that is no score."""


@dataclass(frozen=True)
class RowFailure:
    """A row that could not be scored: the exception or the cause, where in the user's file, what was printed."""

    row: int
    error: str
    at: str = ""
    printed: str = ""


@dataclass
class Scores:
    """Scores of some rows, NaN where there is none; the rows that failed, and those left out by choice."""

    values: list[float]
    details: dict[int, dict[str, Any]] = field(default_factory=dict[int, dict[str, Any]])
    failures: list[RowFailure] = field(default_factory=list[RowFailure])
    declined: list[int] = field(default_factory=list[int])
    seconds: float = 0.0
    printed: str = ""
    notes: list[str] = field(default_factory=list[str])

    @classmethod
    def unscored(cls, num_rows: int) -> Scores:
        """No row scored yet."""
        return cls([math.nan] * num_rows)

    def keep(self, row: int, result: Any, *, may_decline: bool = False) -> None:
        """Take in the result of one row.

        Raises:
            BadResult: when it is no score.
        """
        if type(result) in _NUMBERS:
            self.values[row] = _number(result)
        elif result is None and may_decline:
            self.declined.append(row)
        elif type(result) is dict or isinstance(result, Mapping):
            mapping = cast("Mapping[Any, Any]", result)
            if SCORE not in mapping:
                raise BadResult(f"returned a dict without `{SCORE}`; it has {_names(mapping)}")
            number, details = _number(mapping[SCORE]), _plain_items(mapping, 1)
            self.values[row], self.details[row] = number, details
        else:
            self.values[row] = _number(result)

    def place(self, rows: Sequence[int], part: Scores) -> None:
        """Take in the scores of a part, whose row i is the row ``rows[i]`` here."""
        for row, value in zip(rows, part.values, strict=True):
            self.values[row] = value
        self.details |= {rows[place]: details for place, details in part.details.items()}
        self.failures += [RowFailure(rows[one.row], one.error, one.at, one.printed) for one in part.failures]
        self.declined += [rows[place] for place in part.declined]
        self.seconds += part.seconds
        self.printed = self.printed or part.printed
        self.notes = self.notes or part.notes


def as_list(returned: Any, num_rows: int) -> list[Any]:
    """The results that a function on lists returned, one for each row.

    Raises:
        BadResult: when it is no list, or of another length.
    """
    if returned is None or isinstance(returned, str | bytes | Mapping | Set):
        raise BadResult(f"returned {_kind(returned)}, not a list of one result for each row")
    try:
        results = list(islice(returned, num_rows + 1))
    except TypeError as error:
        raise BadResult(f"returned {_kind(returned)}, not a list of one result for each row") from error
    if len(results) != num_rows:
        many = f"{len(results)}" if len(results) < num_rows else f"more than {num_rows}"
        raise BadResult(f"returned {many} results for {num_rows} rows")
    return results


def plain(value: Any, depth: int = 0) -> Any:
    """A value as numbers, text, lists and dicts, cut where it is very large; of anything else its ``repr``."""
    if value is None or type(value) in _NUMBERS:
        return value
    if isinstance(value, str):
        return str(value)[:_TEXT]
    if isinstance(value, Mapping) and depth < _DEPTH:
        return _plain_items(cast("Mapping[Any, Any]", value), depth + 1)
    if isinstance(value, list | tuple) and depth < _DEPTH:
        return [plain(inner, depth + 1) for inner in islice(cast("Sequence[Any]", value), _ITEMS)]
    try:
        return float(value) if isinstance(value, SupportsFloat) else repr(value)[:_TEXT]
    except (TypeError, ValueError, RuntimeError):
        return repr(value)[:_TEXT]


def _plain_items(mapping: Mapping[Any, Any], depth: int) -> dict[str, Any]:
    items = mapping.items() if len(mapping) <= _ITEMS else islice(mapping.items(), _ITEMS)
    return {
        name if type(name) is str else str(name): inner if type(inner) in _NUMBERS else plain(inner, depth)
        for name, inner in items
    }


def _number(value: Any) -> float:
    """A bool, a number, or a numpy or torch scalar as a float."""
    if type(value) not in _NUMBERS and not isinstance(value, SupportsFloat):
        raise BadResult(f"returned {_kind(value)}, not a number")
    try:
        number = float(value)
    except (TypeError, ValueError, RuntimeError, OverflowError) as error:
        raise BadResult(f"returned {_kind(value)}, not one number: {error}") from error
    if not abs(number) <= _LARGEST:
        raise BadResult(f"returned {number}, not a finite number")
    return number


def _kind(value: Any) -> str:
    if value is None:
        return "None"
    name = type(value).__name__
    return f"the {name} {value[:40]!r}" if isinstance(value, str) else f"a {name}"


def _names(mapping: Mapping[Any, Any]) -> str:
    return ", ".join(f"`{name}`" for name in islice(mapping, 8)) or "no key"
