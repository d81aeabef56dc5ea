"""What happens in a run, as frozen events; this module imports nothing else of the executor.

Times are seconds: ``at`` on the clock, durations elapsed.
"""

from collections.abc import Callable, Mapping
from dataclasses import asdict, dataclass
from typing import Any


@dataclass(frozen=True)
class Event:
    """Base of all events."""

    at: float

    def to_dict(self) -> dict[str, Any]:
        """The fields, and the name of the event."""
        return {"event": type(self).__name__, **asdict(self)}


@dataclass(frozen=True)
class RunStarted(Event):
    """The workers stand and the first step begins."""

    pipelines: tuple[str, ...]
    steps: int
    seed: int


@dataclass(frozen=True)
class StepStarted(Event):
    """A pipeline begins one walk through its plan."""

    pipeline: str
    step: int


@dataclass(frozen=True)
class OpStarted(Event):
    """An op begins."""

    pipeline: str
    step: int
    op: str


@dataclass(frozen=True)
class OpFinished(Event):
    """An op is done; ``driver_bytes`` is what the executor and its processes told each other of the op's rows."""

    pipeline: str
    step: int
    op: str
    rows: int
    seconds: float
    cpu_seconds: float
    driver_bytes: int


@dataclass(frozen=True)
class OpPrinted(Event):
    """What an op printed and logged on a rank that is another process."""

    pipeline: str
    step: int
    op: str
    rank: int
    text: str


@dataclass(frozen=True)
class OpFailed(Event):
    """An op raised."""

    pipeline: str
    step: int
    op: str
    error: str


@dataclass(frozen=True)
class WeightsSynced(Event):
    """The rollout weights of a group are the trained ones."""

    pipeline: str
    step: int
    group: str
    seconds: float


@dataclass(frozen=True)
class ColumnsFreed(Event):
    """Columns that nobody reads any more are gone."""

    pipeline: str
    step: int
    columns: tuple[str, ...]
    bytes: int


@dataclass(frozen=True)
class StepFinished(Event):
    """A pipeline has walked through its plan."""

    pipeline: str
    step: int
    seconds: float
    metrics: Mapping[str, float]


@dataclass(frozen=True)
class CheckpointSaved(Event):
    """A checkpoint of everything after ``step`` is complete."""

    step: int
    seconds: float
    bytes: int


@dataclass(frozen=True)
class RunFinished(Event):
    """The run is over: "done", "stopped" or "failed"."""

    outcome: str
    steps_done: int


Listener = Callable[[Event], None]
