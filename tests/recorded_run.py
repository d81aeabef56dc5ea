"""A short GRPO run as its events were recorded, and states of a view made from them."""

import json
from collections.abc import Callable, Iterable
from dataclasses import replace
from functools import cache
from pathlib import Path

from dagrl.compiler.plan import Plan, plan_from_dict
from dagrl.executor.events import Event, OpFinished, OpStarted, StepFinished, event_from_dict
from dagrl.tui.run_info import RunInfo
from dagrl.tui.state import RunState

FOLDER = Path(__file__).parent / "unit" / "tui" / "recorded"


@cache
def plans() -> tuple[Plan, ...]:
    """Of the training and of the evaluation."""
    return tuple(plan_from_dict(plan) for plan in json.loads((FOLDER / "plan.json").read_text()))


@cache
def info() -> RunInfo:
    return RunInfo(
        title="dagrl grpo",
        models=("zoo:tiny",),
        executor="local",
        folder="runs/grpo",
        plans=plans(),
        resume="dagrl run pipelines/grpo.py --out runs/grpo --resume auto",
        every={"eval": 60},
    )


def lines() -> list[bytes]:
    """The log as it was written."""
    return (FOLDER / "events.jsonl").read_bytes().splitlines(keepends=True)


@cache
def events() -> tuple[Event, ...]:
    read = [event_from_dict(json.loads(line)) for line in lines()]
    return tuple(event for event in read if event is not None)


def until(is_last: Callable[[Event], bool]) -> list[Event]:
    """The events up to the first that is asked for."""
    index = next(index for index, event in enumerate(events()) if is_last(event))
    return list(events()[: index + 1])


def until_started(op: str, step: int, pipeline: str = "grpo") -> list[Event]:
    return until(lambda e: isinstance(e, OpStarted) and (e.pipeline, e.step, e.op) == (pipeline, step, op))


def until_finished(op: str, step: int, pipeline: str = "grpo") -> list[Event]:
    return until(lambda e: isinstance(e, OpFinished) and (e.pipeline, e.step, e.op) == (pipeline, step, op))


def until_step_finished(step: int, pipeline: str = "grpo") -> list[Event]:
    return until(lambda e: isinstance(e, StepFinished) and (e.pipeline, e.step) == (pipeline, step))


def state_of(taken: Iterable[Event]) -> RunState:
    state = RunState()
    for event in taken:
        state.apply(event)
    return state


def long_run(num_steps: int, *, step: int = 2) -> Iterable[Event]:
    """The recorded step again and again, its time moving on, as a run of so many steps."""
    start, *_ = events()
    yield replace(start, steps=num_steps)
    once = [
        event for event in events() if getattr(event, "pipeline", "") == "grpo" and getattr(event, "step", 0) == step
    ]
    length = once[-1].at - once[0].at + 0.01
    for number in range(1, num_steps + 1):
        for event in once:
            yield replace(event, step=number, at=event.at + length * number)
