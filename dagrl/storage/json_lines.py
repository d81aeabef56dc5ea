"""One JSON object a line, always valid: what JSON cannot say becomes null or a string."""

import json
import math
from collections.abc import Mapping
from typing import Any


def json_line(value: Mapping[str, Any]) -> str:
    """ASCII JSON without a line break; NaN and infinities become null, number-like scalars numbers."""
    return json.dumps(plain(value), allow_nan=False)


def plain(value: Any) -> Any:
    """The value in the types that JSON has: NaN and infinities are None, number-like scalars numbers, others text."""
    match value:
        case None | bool() | str() | int():
            return value
        case float():
            return value if math.isfinite(value) else None
        case Mapping():
            return {str(key): plain(item) for key, item in value.items()}
        case list() | tuple() | set() | frozenset():
            return [plain(item) for item in value]
        case _:
            return _scalar(value)


def _scalar(value: Any) -> Any:
    """Numpy and torch scalars by their own ``item``; anything else as text."""
    try:
        number = value.item()
    except (AttributeError, ValueError, RuntimeError):
        return str(value)
    return plain(number) if isinstance(number, bool | int | float | str) else str(value)
