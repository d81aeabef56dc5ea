"""What happens in a run, as frozen events; this module imports nothing else of the executor and no torch.

Times are seconds: ``at`` on the clock, durations elapsed.
"""

from collections.abc import Callable, Mapping
from dataclasses import asdict, dataclass, fields
from typing import Any

from dagrl.data.reported import RankMemory, Sample


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
    resumed_from: int | None = None


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
    """An op is done; ``driver_bytes`` is what the executor and its processes told each other of the op's rows.

    ``tokens`` counts those of the responses that it wrote, where it wrote any.
    """

    pipeline: str
    step: int
    op: str
    rows: int
    seconds: float
    cpu_seconds: float
    driver_bytes: int
    tokens: int = 0


@dataclass(frozen=True)
class RoundStarted(Event):
    """A loop begins a round of its ``ops``: number ``round`` of ``max_rounds`` at most.

    ``groups_passed`` of the ``groups`` that it wants are there from the rounds before.
    """

    pipeline: str
    step: int
    loop: str
    round: int
    max_rounds: int
    groups_passed: int
    groups: int
    ops: tuple[str, ...]


@dataclass(frozen=True)
class OpProgressed(Event):
    """How far a rank is in a running op: ``done`` of ``total`` of its ``unit``, such as "rows" or "micro-batches"."""

    pipeline: str
    step: int
    op: str
    rank: int
    done: int
    total: int
    unit: str


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
class RowsSampled(Event):
    """A few of the rows that an op has scored, low and high rewards among them."""

    pipeline: str
    step: int
    op: str
    samples: tuple[Sample, ...]


@dataclass(frozen=True)
class MemoryUsed(Event):
    """What the processes of a pool hold after an op, by rank."""

    pipeline: str
    step: int
    pool: str
    ranks: tuple[RankMemory, ...]


@dataclass(frozen=True)
class WeightsSynced(Event):
    """The rollout weights of a group are the trained ones."""

    pipeline: str
    step: int
    group: str
    seconds: float


@dataclass(frozen=True)
class PhaseSwitched(Event):
    """A part of what a group holds has come into memory or has left it: the ``action`` of a phase op."""

    pipeline: str
    step: int
    op: str
    group: str
    action: str
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
class Warned(Event):
    """Something in the run's own process warns."""

    text: str


@dataclass(frozen=True)
class ConsoleWritten(Event):
    """What was written to the console of the run's own process while the live view had the terminal."""

    text: str


@dataclass(frozen=True)
class StopRequested(Event):
    """Somebody asked the run to stop after this step: "Ctrl-C", "SIGTERM" or "q"."""

    by: str


@dataclass(frozen=True)
class RunPaused(Event):
    """The run waits before the next step until somebody lets it go on."""

    step: int


@dataclass(frozen=True)
class RunContinued(Event):
    """A paused run goes on."""

    step: int


@dataclass(frozen=True)
class RunFinished(Event):
    """The run is over: "done", "stopped" or "failed"."""

    outcome: str
    steps_done: int


Listener = Callable[[Event], None]

#: Every event by its name.
EVENTS: Mapping[str, type[Event]] = {kind.__name__: kind for kind in Event.__subclasses__()}


def event_from_dict(data: Mapping[str, Any]) -> Event | None:
    """The event that ``to_dict`` wrote, read back from JSON; None for one that this version does not know.

    Fields that it does not know are left out, so a log of a newer version can be read.
    """
    kind = EVENTS.get(data["event"])
    if kind is None:
        return None
    values: dict[str, Any] = {field.name: data[field.name] for field in fields(kind) if field.name in data}
    if "samples" in values:
        values["samples"] = tuple(Sample(**each) for each in values["samples"])
    if "ranks" in values:
        values["ranks"] = tuple(RankMemory(**each) for each in values["ranks"])
    lists: dict[str, Any] = {name: tuple(value) for name, value in values.items() if isinstance(value, list)}
    return kind(**(values | lists))
