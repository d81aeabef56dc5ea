"""Phases of a rollout engine on screen, and as parts of a step's time."""

from unit.tui.step_graphs import plan_of, run_op

from dagrl.compiler import PhaseOp
from dagrl.executor.events import OpFinished, OpStarted, PhaseSwitched, StepStarted, event_from_dict
from dagrl.tui.critical_path import spans_of
from dagrl.tui.panels.dag import phase
from dagrl.tui.run_info import RunInfo
from dagrl.tui.state import RunState
from dagrl.tui.step_graph import StepGraph

PLAN = plan_of(
    PhaseOp("w", "main", "actor", "wake_kv", ()),
    run_op("generate", ["w"], group="actor", needs="rollout", version=0),
    PhaseOp("s", "main", "actor", "sleep", ("generate",), level=2),
    run_op("update", ["generate", "s"], group="actor", needs="train", version=0, mutates=True),
)
INFO = RunInfo(title="p", models=("m",), executor="local", folder="", plans=(PLAN,))
EVENTS = [
    StepStarted(0.0, "grpo", 1),
    PhaseSwitched(2.0, "grpo", 1, "w", "actor", "wake_kv", 1.5),
    OpStarted(2.0, "grpo", 1, "generate"),
    OpFinished(5.0, "grpo", 1, "generate", 4, 3.0, 3.0, 0),
    PhaseSwitched(6.0, "grpo", 1, "s", "actor", "sleep", 0.5),
]


def after(count: int) -> RunState:
    state = RunState()
    for event in EVENTS[:count]:
        state.apply(event)
    return state


def test_the_title_says_what_the_engine_does() -> None:
    assert phase(after(1), INFO).endswith("step 1")
    assert phase(after(2), INFO).endswith("step 1, rollout awake")
    assert phase(after(5), INFO).endswith("step 1, rollout asleep")


def test_switches_are_parts_of_the_steps_time() -> None:
    walk = after(5).walk
    assert walk is not None
    spans = spans_of(walk, PLAN)
    assert {op: round(span.seconds, 6) for op, span in spans.items()} == {"w": 1.5, "generate": 3.0, "s": 0.5}


def test_the_drawing_leaves_switches_out() -> None:
    graph = StepGraph.from_plan(PLAN)
    assert [node.id for node in graph.nodes] == ["generate", "update"]
    assert graph.edges == (("generate", "update"),)


def test_the_event_survives_a_log() -> None:
    assert event_from_dict(EVENTS[1].to_dict()) == EVENTS[1]
