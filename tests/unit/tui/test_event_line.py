"""Lines of a log that are damaged are passed over; every other one is read whole."""

import json
from dataclasses import fields
from typing import Any

import pytest
from recorded_run import events, lines

from dagrl.data.reported import Sample
from dagrl.executor.events import EVENTS
from dagrl.tui.event_line import FITS, read_event
from dagrl.tui.replay import rebuild

DAMAGED = [
    b"",
    b"garbage",
    b"\xff\x00",
    b"[" * 100_000,
    b"[]",
    b"3",
    b"{}",
    b'{"event": ["a"], "at": 1.0}',
    b'{"event": "OpStarted", "at": 1.0}',
    b'{"event": "OpStarted", "at": "x", "pipeline": "grpo", "step": 1, "op": "a"}',
    b'{"event": "OpStarted", "at": 1.0, "pipeline": "grpo", "step": true, "op": "a"}',
    b'{"event": "OpStarted", "at": 1.0, "pipeline": "grpo", "step": ' + b"9" * 400 + b', "op": "a"}',
    b'{"event": "RunStarted", "at": 1.0, "pipelines": 5, "steps": 3, "seed": 0}',
    b'{"event": "RunStarted", "at": 1.0, "pipelines": [5], "steps": 3, "seed": 0}',
    b'{"event": "StepFinished", "at": 1.0, "pipeline": "grpo", "step": 1, "seconds": null, "metrics": {}}',
    b'{"event": "StepFinished", "at": 1.0, "pipeline": "grpo", "step": 1, "seconds": 1.0, "metrics": {"a": "b"}}',
    b'{"event": "RowsSampled", "at": 1.0, "pipeline": "grpo", "step": 1, "op": "a", "samples": [1]}',
    b'{"event": "MemoryUsed", "at": 1.0, "pipeline": "grpo", "step": 1, "pool": "a", "ranks": [{"weights": "a"}]}',
    b'{"event": "OpFinished", "at": 1.0, "pipeline": "grpo", "step": 1, "op": "a", "rows": 1, "seconds": 1-2e,',
]


@pytest.mark.parametrize("line", DAMAGED)
def test_a_damaged_line_is_no_event_and_breaks_no_replay(line: bytes) -> None:
    assert read_event(line) is None
    log = lines()
    assert rebuild([*log[:80], line + b"\n", *log[80:]]).step_done == rebuild(log).step_done


def test_every_event_of_a_run_is_read() -> None:
    assert tuple(map(read_event, lines())) == events()


def test_what_json_has_no_number_for_is_null_where_that_is_meant() -> None:
    sample: dict[str, Any] = {"prompt": "a", "response": "b", "answer": "c", "reward": None}
    told = {"event": "RowsSampled", "at": 1, "pipeline": "grpo", "step": 1, "op": "a", "samples": [sample]}
    event = read_event(json.dumps(told).encode())
    assert event is not None
    assert event == EVENTS["RowsSampled"](1, pipeline="grpo", step=1, op="a", samples=(Sample(**sample),))  # pyright: ignore[reportCallIssue]


def test_every_field_is_checked() -> None:
    assert {field.type for kind in EVENTS.values() for field in fields(kind)} <= set(FITS)
