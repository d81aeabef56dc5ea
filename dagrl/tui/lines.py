"""Plain lines for a place without a live view: one for each step, evaluation, save, warning and failure."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Mapping
from typing import Any

from dagrl.executor.events import (
    CheckpointSaved,
    Event,
    OpFailed,
    OpFinished,
    OpPrinted,
    RunContinued,
    RunPaused,
    StepFinished,
    StepStarted,
    Warned,
)
from dagrl.tui.formats import duration, is_number, num_bytes
from dagrl.tui.text import safe, safe_in_full, safe_lines

#: Shown on the line of a training step, if the step has them: label, metric and format.
_SHOWN = (
    ("reward", "reward/mean", ".3f"),
    ("kl", "actor/ref_kl", ".4f"),
    ("entropy", "actor/entropy", ".3f"),
    ("len", "response_length/mean", ".1f"),
    ("gap", "rollout/logprob_gap", ".4f"),
    ("rounds", "refill/rounds", ".0f"),
)
_SLOWEST = 3
_REWARD = "reward/mean"


class Lines:
    """Turns the events of a run into lines; keeps the time of the last steps for the estimate of what is left."""

    def __init__(self, training: str, num_steps: int) -> None:
        self._training = training
        self._num_steps = num_steps
        self._recent: deque[float] = deque(maxlen=20)
        self._op_seconds: dict[str, float] = {}
        self._takes: Mapping[type[Event], Callable[[Any], list[str]]] = {
            StepStarted: self._step_started,
            OpFinished: self._op_finished,
            StepFinished: self._step_finished,
            CheckpointSaved: _saved,
            Warned: _warned,
            OpFailed: _failed,
            OpPrinted: _printed,
            RunPaused: lambda event: [f"paused before step {event.step}"],
            RunContinued: lambda event: [f"goes on with step {event.step}"],
        }

    def lines(self, event: Event) -> list[str]:
        """The lines of an event; none for most. Nothing in them is more than text, whatever a node wrote."""
        take = self._takes.get(type(event))
        return take(event) if take is not None else []

    def _step_started(self, event: StepStarted) -> list[str]:
        self._op_seconds = {}
        return []

    def _op_finished(self, event: OpFinished) -> list[str]:
        self._op_seconds[event.op] = self._op_seconds.get(event.op, 0.0) + event.seconds
        return []

    def _step_finished(self, event: StepFinished) -> list[str]:
        return [self._training_line(event) if event.pipeline == self._training else _evaluation_line(event)]

    def _training_line(self, event: StepFinished) -> str:
        self._recent.append(event.seconds)
        shown = [f"{label} {_as(form, event.metrics[name])}" for label, name, form in _SHOWN if name in event.metrics]
        slowest = sorted(self._op_seconds.items(), key=lambda item: -item[1])[:_SLOWEST]
        times = " ".join(f"{safe(op)} {seconds * 1000:.0f}" for op, seconds in slowest)
        left = (self._num_steps - event.step) * sum(self._recent) / len(self._recent)
        head = f"step {event.step}/{self._num_steps} {' '.join(shown)}"
        return f"{head} {event.seconds:.2f} s ({times} ms) eta {left:.0f}s"


def _evaluation_line(event: StepFinished) -> str:
    rewards = {name: value for name, value in event.metrics.items() if name.startswith(_REWARD)}
    labels = {name: name.removeprefix(f"{_REWARD}/").replace(_REWARD, "reward") for name in rewards}
    shown = " ".join(f"{safe(labels[name])} {_as('.3f', value)}" for name, value in rewards.items())
    return f"{safe(event.pipeline)} after step {event.step}: {shown} {event.seconds:.2f} s"


def _saved(event: CheckpointSaved) -> list[str]:
    return [f"saved step {event.step}: {num_bytes(event.bytes)} in {duration(event.seconds)}"]


def _warned(event: Warned) -> list[str]:
    return [f"warning: {safe(event.text)}"]


def _failed(event: OpFailed) -> list[str]:
    reason = safe_lines(event.error, 1) or ["without a message"]
    return [f"failed: {safe(event.op)} of {safe(event.pipeline)} in step {event.step}: {reason[0]}"]


def _printed(event: OpPrinted) -> list[str]:
    """What a node printed in another process, each line with the node and its rank."""
    return [f"[{safe(event.op)} rank {event.rank}] {safe_in_full(text)}" for text in event.text.splitlines()]


def _as(form: str, value: float | None) -> str:
    """A metric; one that a log could only keep as null was not a number."""
    return format(value, form) if value is not None and is_number(value) else "nan"
