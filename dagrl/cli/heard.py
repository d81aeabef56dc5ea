"""The warnings of this process, logged or by Python's ``warnings``, kept for the view beside where they go anyway."""

from __future__ import annotations

import logging
import warnings
from typing import Any

#: Of many warnings between two steps, the first ones are kept.
_MOST = 20


class Heard:
    """Collects warnings from ``start`` to ``stop``.

    Logging is heard where records are made: a handler would miss loggers that hand nothing on, and would keep those
    without a handler from writing to stderr.
    """

    def __init__(self) -> None:
        self._texts: list[str] = []
        self._num_more = 0
        self._make_record = logging.getLogRecordFactory()
        self._show = warnings.showwarning

    def start(self) -> None:
        """Begin to listen."""
        self._make_record = logging.getLogRecordFactory()
        self._show = warnings.showwarning
        logging.setLogRecordFactory(self._record)
        warnings.showwarning = self._warning

    def take(self) -> list[str]:
        """What was heard since the last time."""
        texts = [*self._texts, f"and {self._num_more} more warnings"] if self._num_more else self._texts
        self._texts, self._num_more = [], 0
        return texts

    def stop(self) -> None:
        """Listen no more."""
        logging.setLogRecordFactory(self._make_record)
        warnings.showwarning = self._show

    def _record(self, *arguments: Any, **more: Any) -> logging.LogRecord:
        record = self._make_record(*arguments, **more)
        if record.levelno >= logging.WARNING:
            self._add(f"{record.name}: {_message(record)}")
        return record

    def _warning(
        self, message: Warning | str, category: type[Warning], filename: str, lineno: int, file: Any = None,
        line: str | None = None,
    ) -> None:  # fmt: skip
        self._add(f"{filename}:{lineno}: {category.__name__}: {message}")
        self._show(message, category, filename, lineno, file, line)

    def _add(self, text: str) -> None:
        if len(self._texts) < _MOST:
            self._texts.append(text)
        else:
            self._num_more += 1


def _message(record: logging.LogRecord) -> str:
    try:
        return record.getMessage()
    except Exception:  # noqa: BLE001 - users' arguments are formatted here, and logging forgives what they raise too
        return str(record.msg)
