"""A step of more nodes than can be drawn: each is told, and notes and bars fit into the cells that there are."""

from rich.cells import cell_len
from unit.tui.step_graphs import plan_of, run_op

from dagrl.executor.events import Event, OpFinished, OpStarted, RunStarted, StepFinished, StepStarted
from dagrl.tui.frame import frame
from dagrl.tui.panels.last_step import step_bar
from dagrl.tui.run_info import RunInfo
from dagrl.tui.state import RunState

NAMES = [f"a_node_of_some_length_{number:02}" for number in range(17)]
PLAN = plan_of(*(run_op(name, NAMES[index - 1 : index] if index else []) for index, name in enumerate(NAMES)))
INFO = RunInfo(plans=(PLAN,))


def a_step() -> RunState:
    """Each op takes ten times its number in milliseconds."""
    told: list[Event] = [RunStarted(0.0, ("p",), 2, 0), StepStarted(0.0, "p", 1)]
    now = 0.0
    for number, name in enumerate(NAMES):
        told.append(OpStarted(now, "p", 1, name))
        now += number / 100
        told.append(OpFinished(now, "p", 1, name, 4, number / 100, 0.0, 0))
    told.append(StepFinished(now, "p", 1, now, {"reward/mean": 0.5}))
    state = RunState()
    for event in told:
        state.apply(event)
    return state


def texts(width: int, height: int) -> list[str]:
    lines = [each.plain for each in frame(a_step(), INFO, width, height, 2.0)]
    assert len(lines) == height
    assert {cell_len(each) for each in lines} == {width}
    return lines


def test_every_node_is_in_the_list_where_there_is_room() -> None:
    for width, height in ((120, 40), (130, 44)):
        lines = texts(width, height)
        assert all(any(f"✓ {name}" in each for each in lines) for name in NAMES)


def test_the_critical_path_names_its_longest_nodes_and_its_time() -> None:
    (told,) = [each for each in texts(120, 40) if "critical path" in each]
    assert "1.4 s: " in told
    assert NAMES[-1] in told
    assert "…" not in told
    assert NAMES[1] not in told


def test_the_step_on_one_line_tells_the_longest_and_the_rest_as_other() -> None:
    for width in (60, 80, 100):
        bar = step_bar(a_step(), INFO, width).plain
        assert cell_len(bar) == width
        assert bar.rstrip().endswith("ms")
        numbers = [int(word) for word in bar.split() if word.isdigit()]
        assert abs(sum(numbers) - 1360) <= len(numbers)
        assert "other" in bar
