"""A loop in what people see: a node with its round and groups, one span in the step's time, a number on the line."""

from unit.tui.step_graphs import plan_of, run_op

from dagrl.compiler import LoopOp, Plan
from dagrl.executor.events import (
    Event,
    OpFinished,
    OpStarted,
    RoundStarted,
    RunStarted,
    StepFinished,
    StepStarted,
)
from dagrl.storage.json_lines import json_line
from dagrl.tui.critical_path import spans_of, step_time
from dagrl.tui.event_line import read_event
from dagrl.tui.lines import Lines
from dagrl.tui.mermaid import mermaid_text
from dagrl.tui.node_labels import box_labels
from dagrl.tui.node_status import NodeStatus, statuses
from dagrl.tui.panels.dag import dag_lines
from dagrl.tui.panels.last_step import op_names
from dagrl.tui.plan_drawing import plan_drawing
from dagrl.tui.run_info import RunInfo
from dagrl.tui.state import RunState
from dagrl.tui.step_graph import StepGraph

OPS = ("draw", "score", "keep")


def looped() -> Plan:
    ops = (run_op("draw"), run_op("score", ["draw"]), run_op("keep", ["score"]))
    loop = LoopOp("refill", "draw", 8, 4, ("keep",), ("score.rewards",), ops, ("load",), "file.py:2")
    return plan_of(run_op("load"), loop, run_op("update", ["refill"]))


def op(name: str, start: float, end: float) -> list[Event]:
    finished = OpFinished(end, "p", 1, name, rows=4, seconds=end - start, cpu_seconds=0.0, driver_bytes=0)
    return [OpStarted(start, "p", 1, name), finished]


def round_of(number: int, at: float, passed: int) -> list[Event]:
    return [RoundStarted(at, "p", 1, "refill", number, 4, passed, 8, OPS)]


def begun() -> list[Event]:
    return [RunStarted(0.0, ("p",), 3, 0), StepStarted(0.0, "p", 1), *op("load", 0.0, 1.0)]


def one_round(number: int, at: float, passed: int) -> list[Event]:
    """A second each."""
    ops = [event for place, name in enumerate(OPS) for event in op(name, at + place, at + place + 1)]
    return [*round_of(number, at, passed), *ops]


def walked() -> list[Event]:
    rounds = [*one_round(1, 1.0, 0), *one_round(2, 4.0, 5)]
    return [*begun(), *rounds, *op("update", 7.0, 9.0), StepFinished(9.0, "p", 1, 9.0, {"refill/rounds": 2.0})]


def state_of(taken: list[Event]) -> RunState:
    state = RunState()
    for event in taken:
        state.apply(event)
    return state


def statuses_of(taken: list[Event], now: float) -> dict[str, NodeStatus]:
    return statuses(state_of(taken), RunInfo(plans=(looped(),)), now)


def test_the_loop_is_a_node_behind_its_rounds_that_later_ones_wait_for() -> None:
    graph = StepGraph.from_plan(looped())
    assert graph.edges == (
        ("load", "draw"), ("draw", "score"), ("score", "keep"), ("keep", "refill"), ("refill", "update"),
    )  # fmt: skip
    assert [(node.id, node.limits) for node in graph.nodes if node.kind == "loop"] == [("refill", (8, 4))]
    drawn = "\n".join(line.plain for line in plan_drawing(looped(), 120))
    assert "8 groups" in drawn
    assert "max 4 rounds" in drawn
    assert 'p0n4{{"refill"}}' in mermaid_text([looped()])


def test_before_its_first_round_it_waits() -> None:
    found = statuses_of(begun()[:2], 0.5)
    assert (found["refill"].name, found["refill"].state) == ("refill", "waiting")


def test_in_a_round_it_says_which_and_what_the_rounds_before_have_brought() -> None:
    second = [*begun(), *one_round(1, 1.0, 0), *round_of(2, 4.0, 5), *op("draw", 4.0, 5.0)]
    found = statuses_of(second, 6.5)
    assert (found["refill"].name, found["refill"].state, found["refill"].seconds) == ("refill 2/4", "running", 5.5)
    assert {name: found[name].state for name in OPS} == {"draw": "done", "score": "queued", "keep": "waiting"}
    assert [line.plain for line in box_labels(found)["refill"]] == ["● refill 2/4", "5.5 s", "5/8 groups"]
    state = state_of(second)
    assert state.walk is not None
    assert state.walk.batch == 1
    text = "\n".join(line.plain for line in dag_lines(state, RunInfo(plans=(looped(),)), 120, 20, 6.5))
    assert "refill 2/4" in text
    assert "5/8 groups" in text


def test_after_its_last_round_it_is_done() -> None:
    found = statuses_of(walked()[:-1], 9.0)
    assert (found["refill"].name, found["refill"].state) == ("refill 2/4", "done")
    assert found["update"].state == "done"


def test_in_the_time_of_a_step_all_rounds_are_one_span() -> None:
    walk = state_of(walked()).last_walk
    assert walk is not None
    spans = spans_of(walk, looped())
    assert {name: (span.start, span.end) for name, span in spans.items()} == {
        "load": (0.0, 1.0), "refill": (1.0, 7.0), "update": (7.0, 9.0),
    }  # fmt: skip
    times = step_time(walk, looped())
    assert (times.path, times.path_seconds, times.between) == (("load", "refill", "update"), 9.0, 0.0)
    assert op_names(looped())["refill"] == "refill"


def test_the_next_step_begins_without_rounds() -> None:
    found = statuses_of([*walked(), StepStarted(9.0, "p", 2)], 9.1)
    assert (found["refill"].name, found["refill"].state) == ("refill", "waiting")


def test_the_line_of_a_step_has_its_rounds() -> None:
    lines = Lines("p", 3)
    assert [line for event in walked() for line in lines.lines(event)] == [
        "step 1/3 rounds 2 9.00 s (draw 2000 score 2000 keep 2000 ms) eta 18s"
    ]


def test_a_round_is_read_back_from_a_log() -> None:
    (event,) = round_of(3, 2.0, 5)
    assert read_event(json_line(event.to_dict()).encode()) == event
    broken = {**event.to_dict(), "ops": ["draw", 3]}
    assert read_event(json_line(broken).encode()) is None
