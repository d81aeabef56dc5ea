"""What a run tells: how it starts, the metrics of every walk, and what it leaves."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any


@dataclass(frozen=True)
class Start:
    """How a run begins: after step ``resumed_from``, or None at the first; ``again`` where one died before it saved."""

    folder: str
    steps: int
    resumed_from: int | None
    again: bool


@dataclass(frozen=True)
class Record:
    """The metrics of one walk: a training step, or an evaluation after ``step`` steps.

    ``seconds`` are those of the whole walk, ``op_seconds`` those of its calls by name, of its weight syncs as
    ``sync_GROUP``, and of its phase switches: ``phase/ACTION``, and ``phases`` for all of them.
    """

    pipeline: str
    step: int
    metrics: Mapping[str, float]
    seconds: float
    op_seconds: Mapping[str, float]

    def to_dict(self) -> dict[str, Any]:
        """One line of the metrics; times are the only keys that differ between equal runs."""
        times = {"time/step": self.seconds, **{f"time/{op}": spent for op, spent in self.op_seconds.items()}}
        head = {"pipeline": self.pipeline, "step": self.step}
        return {**head, **self.metrics, **times, **head}


@dataclass(frozen=True)
class RunResult:
    """What a run leaves: the records that this call made, in order, and its folder.

    ``step`` is the last one done, ``resumed_from`` the one it went on after. ``stopped_by`` is the signal that ended
    it early, and ``saved`` the checkpoint of its end, where one was made.
    """

    records: tuple[Record, ...]
    folder: str
    step: int
    resumed_from: int | None = None
    stopped_by: int | None = None
    saved: str | None = None
