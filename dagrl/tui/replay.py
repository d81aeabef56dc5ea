"""The state of a run from its event log, without reading every line of a long one.

Of old steps only what lasts is read: results, times of ops, saves, warnings. The last two steps are read whole.
"""

from __future__ import annotations

import contextlib
import json
import re
from collections.abc import Iterable

from dagrl.executor.events import RunStarted, StepStarted
from dagrl.tui.event_line import read_event
from dagrl.tui.state import RunState

#: Where in a line of a log the name of its event begins.
_NAME = len(b'{"event": "')
#: Events of old steps of which each counts.
_LASTING = frozenset(
    {b"RunStarted", b"StepFinished", b"CheckpointSaved", b"Warned", b"OpFailed", b"StopRequested", b"RunFinished"}
)
#: Events of old steps of which only the last of a kind counts.
_LATEST = frozenset({b"RowsSampled", b"MemoryUsed", b"ConsoleWritten", b"OpPrinted"})
_READ_WHEN_OLD = _LASTING | _LATEST | {b"OpFinished"}
_OP_TIME = re.compile(
    rb'\{"event": "OpFinished", "at": [-\d.e+]+, "pipeline": "([\w.-]*)", "step": \d+, '
    rb'"op": "([\w.:@+-]*)", "rows": \d+, "seconds": ([-\d.e+]+),'
)
#: Training steps at the end of the log that are read whole.
_WHOLE_STEPS = 2


def rebuild(lines: Iterable[bytes], at: int | None = None) -> RunState:
    """The state at the end of the log, or where training step ``at`` and what followed it were over.

    A line that a crash has cut short, or that is damaged, is left out.
    """
    replay = _Replay()
    for line in lines:
        kind = line[_NAME : line.find(b'"', _NAME)]
        if kind == b"RunStarted":
            replay.take_training(line)
        elif kind == b"StepStarted" and replay.is_training(line):
            if at is not None and _step(line) > at:
                break
            replay.next_step()
        replay.newest.whole.append(line)
        if kind in _READ_WHEN_OLD:
            replay.newest.lasting.append((kind, line))
    return replay.finish()


class _Step:
    """The lines of a training step and what follows it, and those of them that are read once it is old."""

    __slots__ = ("lasting", "whole")

    def __init__(self) -> None:
        self.whole: list[bytes] = []
        self.lasting: list[tuple[bytes, bytes]] = []


class _Replay:
    """Keeps the lines of the last training steps, and reads of older ones what lasts."""

    def __init__(self) -> None:
        self.state = RunState()
        self.newest = _Step()
        self._steps = [self.newest]
        self._latest: dict[bytes, bytes] = {}
        self._training: bytes | None = None

    def take_training(self, line: bytes) -> None:
        """Learn from the start of a run which pipeline trains."""
        event = read_event(line)
        if isinstance(event, RunStarted) and event.pipelines:
            self._training = f'"pipeline": {json.dumps(event.pipelines[0])},'.encode()

    def is_training(self, line: bytes) -> bool:
        """Whether the line is of the training pipeline."""
        return self._training is not None and self._training in line

    def next_step(self) -> None:
        """A training step begins."""
        self.newest = _Step()
        self._steps.append(self.newest)
        if len(self._steps) > _WHOLE_STEPS:
            for kind, line in self._steps.pop(0).lasting:
                self._read_old(kind, line)

    def finish(self) -> RunState:
        """Read what is left."""
        for line in [*self._latest.values(), *(line for step in self._steps for line in step.whole)]:
            self._apply(line)
        return self.state

    def _read_old(self, kind: bytes, line: bytes) -> None:
        if kind == b"OpFinished":
            match = _OP_TIME.match(line)
            if match is None:
                self._apply(line)
            else:
                pipeline, op, seconds = match.groups()
                with contextlib.suppress(ValueError):  # a damaged line
                    self.state.op_took(pipeline.decode(), op.decode(), float(seconds))
        elif kind in _LATEST:
            self._latest[kind] = line
        else:
            self._apply(line)

    def _apply(self, line: bytes) -> None:
        event = read_event(line)
        if event is not None:
            self.state.apply(event)


def _step(line: bytes) -> int:
    event = read_event(line)
    return event.step if isinstance(event, StepStarted) else -1
