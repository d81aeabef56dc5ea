"""A log is read back to the state that its events make, however long it is."""

import json

import pytest
from recorded_run import events, info, lines, long_run, state_of, until_step_finished
from support import calls_of

from dagrl.executor.events import (
    Event,
    MemoryUsed,
    OpStarted,
    RowsSampled,
    RunStarted,
    StepStarted,
    event_from_dict,
)
from dagrl.storage.json_lines import json_line
from dagrl.tui.frame import frame
from dagrl.tui.replay import rebuild
from dagrl.tui.state import RunState
from dagrl.tui.summary import summary_text


def written(taken: list[Event]) -> list[bytes]:
    return [f"{json_line(event.to_dict())}\n".encode() for event in taken]


def picture(state: RunState) -> list[str]:
    now = (state.heard_at or 0.0) + 0.5
    return [*(line.plain for line in frame(state, info(), 160, 50, now)), summary_text(state, info())]


@pytest.mark.parametrize("count", [0, 1, 5, 40, 77, 100, 150, 184])
def test_the_replayed_state_looks_like_the_one_that_heard_every_event(count: int) -> None:
    assert picture(rebuild(lines()[:count])) == picture(state_of(events()[:count]))


def test_so_does_that_of_a_log_of_many_steps() -> None:
    taken = list(long_run(700))[:-9]
    assert picture(rebuild(written(taken))) == picture(state_of(taken))


def test_samples_and_memory_of_old_steps_stay_until_there_are_others() -> None:
    """A node that is skipped in the last steps, such as one that is filtered out, has told them before."""
    old = [e for e in events() if not (isinstance(e, RowsSampled | MemoryUsed) and e.step > 2)]
    assert isinstance(rebuild(written(old)).samples["grpo"], RowsSampled)
    assert picture(rebuild(written(old))) == picture(state_of(old))


@pytest.mark.parametrize("step", [1, 3, 6, 7])
def test_a_step_in_between_is_shown_as_it_was(step: int) -> None:
    shown = rebuild(lines(), step)
    following = next(
        (i for i, e in enumerate(events()) if isinstance(e, StepStarted) and e.pipeline == "grpo" and e.step > step),
        len(events()),
    )
    assert picture(shown) == picture(state_of(events()[:following]))
    assert shown.step_done == min(step, 6)


def test_a_resumed_log_goes_on() -> None:
    first = until_step_finished(3)
    again = [
        RunStarted(2000.0, ("grpo", "eval"), 6, 0, resumed_from=3),
        StepStarted(2001.0, "grpo", 4),
        OpStarted(2001.1, "grpo", 4, "prompts"),
    ]
    state = rebuild(written([*first, *again]))
    assert picture(state) == picture(state_of([*first, *again]))
    assert (state.resumed_from, state.step_done) == (3, 3)


@pytest.mark.parametrize("rest", [b'{"event": "StepFin', b'{"event": "OpStarted"}\xff', b"\n", b"garbage\n"])
def test_a_line_that_was_cut_short_is_left_out(rest: bytes) -> None:
    assert picture(rebuild([*lines()[:80], rest])) == picture(state_of(events()[:80]))


def test_events_of_another_version_are_passed_over() -> None:
    unknown = b'{"event": "FromTheFuture", "at": 1.0, "pipeline": "grpo"}\n'
    assert picture(rebuild([*lines()[:80], unknown])) == picture(state_of(events()[:80]))


def test_of_a_long_log_only_what_lasts_is_read() -> None:
    log = written(list(long_run(1500)))

    def every_event() -> RunState:
        return state_of(filter(None, (event_from_dict(json.loads(line)) for line in log)))

    all_of_it, some = calls_of(every_event), calls_of(lambda: rebuild(log))
    assert some < 0.4 * all_of_it, f"{some} calls, and every event takes {all_of_it}"
