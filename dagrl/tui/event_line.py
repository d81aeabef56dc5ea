"""A line of an event log, or of what a run tells its view, as an event; a line that is damaged is passed over."""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping
from dataclasses import fields
from typing import Any

from dagrl.data.reported import RankMemory, Sample
from dagrl.executor.events import EVENTS, Event, event_from_dict

#: Beyond it there are no counts, only damage.
_MOST = 2**63


def read_event(line: bytes) -> Event | None:
    """The event; None for one that this version does not know, and for what is none."""
    try:
        event = event_from_dict(json.loads(line))
    except (ValueError, TypeError, KeyError, RecursionError):
        return None
    return event if event is not None and _is_sound(event) else None


def _is_sound(of: Event | Sample | RankMemory) -> bool:
    """Whether every field has its type; nobody who takes an event looks again."""
    kinds = _KINDS[type(of)]
    return all(FITS[kinds[name]](value) for name, value in vars(of).items())


def _is_int(value: Any) -> bool:
    return isinstance(value, int) and not isinstance(value, bool) and -_MOST <= value <= _MOST


def _is_float(value: Any) -> bool:
    return isinstance(value, float) or _is_int(value)


def _is_text(value: Any) -> bool:
    return isinstance(value, str)


def _is_float_or_none(value: Any) -> bool:
    return value is None or _is_float(value)


def _are(fits: Callable[[Any], bool]) -> Callable[[Any], bool]:
    """The check of a tuple of such."""
    return lambda value: isinstance(value, tuple) and all(map(fits, value))  # pyright: ignore[reportUnknownVariableType,reportUnknownArgumentType]


def _are_metrics(value: Any) -> bool:
    """Names are text in all JSON; a number that JSON cannot say is null."""
    return isinstance(value, dict) and all(map(_is_float_or_none, value.values()))  # pyright: ignore[reportUnknownArgumentType,reportUnknownMemberType]


#: What the value of a field of a type is.
FITS: Mapping[Any, Callable[[Any], bool]] = {
    float: _is_float,
    int: _is_int,
    str: _is_text,
    float | None: _is_float_or_none,
    int | None: lambda value: value is None or _is_int(value),
    tuple[str, ...]: _are(_is_text),
    tuple[Sample, ...]: _are(_is_sound),
    tuple[RankMemory, ...]: _are(_is_sound),
    Mapping[str, float]: _are_metrics,
}
_KINDS: Mapping[type, Mapping[str, Any]] = {
    kind: {field.name: field.type for field in fields(kind)} for kind in (*EVENTS.values(), Sample, RankMemory)
}
