"""The state of a view follows the events, in bounded memory."""

import pickle
from dataclasses import replace
from functools import partial

import pytest
from recorded_run import events, info, long_run, state_of, until_finished, until_started, until_step_finished
from support import calls_of

from dagrl.executor.events import (
    ColumnsFreed,
    ConsoleWritten,
    OpFailed,
    OpFinished,
    OpPrinted,
    OpProgressed,
    OpStarted,
    RunContinued,
    RunFinished,
    RunPaused,
    RunStarted,
    StepFinished,
    StepStarted,
    StopRequested,
    Warned,
)
from dagrl.tui.eta import seconds_left, step_seconds
from dagrl.tui.node_status import NodeStatus, statuses, waiting_for
from dagrl.tui.run_info import RunInfo
from dagrl.tui.state import RECENT, RunState


def status_of(state: RunState, op: str, now: float) -> NodeStatus:
    return statuses(state, info(), now)[op]


def test_nothing_is_known_before_the_first_event() -> None:
    state = RunState()
    assert {each.state for each in statuses(state, info(), 0.0).values()} == {"waiting"}
    assert not any(each.waits_for for each in statuses(state, info(), 0.0).values())
    assert (state.walk, state.outcome, seconds_left(state, info(), 0.0)) == (None, None, None)


def test_an_op_goes_from_waiting_to_done() -> None:
    before = state_of(until_finished("prompts", 4))
    now = before.heard_at or 0.0
    assert status_of(before, "generate", now).state == "queued"
    assert status_of(before, "verify", now).waits_for == ("generate",)
    running = state_of(until_started("generate", 4))
    assert status_of(running, "generate", (running.heard_at or 0.0) + 0.25).seconds == pytest.approx(0.25)
    done = status_of(state_of(until_finished("generate", 4)), "generate", now)
    assert (done.state, done.rows, done.tokens) == ("done", 64, 1088)


def test_an_op_that_could_run_waits_for_its_turn() -> None:
    state = state_of(until_started("verify", 4))
    waiting = status_of(state, "ref_logprob", state.heard_at or 0.0)
    assert (waiting.state, waiting.turn_of) == ("queued", "verify")
    update = status_of(state, "update_policy", state.heard_at or 0.0)
    assert set(update.waits_for) == {"grpo_advantage", "ref_logprob"}


def test_progress_counts_all_ranks_and_names_the_slowest() -> None:
    taken = until_started("update_policy", 4)
    at = taken[-1].at
    for rank, done in enumerate((3, 1, 3)):
        taken.append(OpProgressed(at, "grpo", 4, "update_policy", rank, done, 4, "micro-batches"))
    status = status_of(state_of(taken), "update_policy", at)
    assert status.progress is not None
    assert (status.progress.done, status.progress.total, status.progress.unit) == (7, 12, "micro-batches")
    assert status.slowest == "rank 1 is at 1/4"


@pytest.mark.parametrize(("after", "shown"), [(0.9, "running"), (1.1, "stalled")])
def test_an_op_that_takes_three_times_as_long_as_usual_stalls(after: float, shown: str) -> None:
    state = state_of(until_started("ref_logprob", 5))
    now = (state.heard_at or 0.0) + after
    assert status_of(state, "ref_logprob", now).state == shown
    assert waiting_for(statuses(state, info(), now), "ref_logprob") == ["update_policy"]


def test_no_op_stalls_before_its_usual_time_is_known() -> None:
    state = state_of(until_started("ref_logprob", 2))
    assert status_of(state, "ref_logprob", (state.heard_at or 0.0) + 1000).state == "running"


def test_the_usual_time_is_the_median_of_the_last_ones() -> None:
    state = RunState()
    for number in range(RECENT * 3):
        seconds = 100.0 if number < RECENT * 2 else float(number % 3)
        state.apply(OpFinished(number, "grpo", number, "generate", 1, seconds, 0.0, 0))
    assert state.usual("grpo", "generate") == 1.0
    assert state.usual("grpo", "verify") is None


def test_each_batch_of_an_evaluation_begins_anew() -> None:
    second = [e for e in events() if isinstance(e, OpStarted) and (e.pipeline, e.op) == ("eval", "prompts")][1]
    state = state_of(events()[: events().index(second) + 1])
    shown = {name: each.state for name, each in statuses(state, info(), second.at).items()}
    assert shown == {"prompts": "running", "generate": "waiting", "verify": "waiting", "report": "waiting"}
    assert state.walk is not None
    assert state.walk.batch == 2


def test_evaluations_are_no_steps() -> None:
    state = state_of(until_step_finished(0, "eval"))
    assert (state.step_done, state.last_walk) == (0, None)
    assert state.evaluation_seconds > 2
    held_out = state.metric("eval", "reward/mean")
    assert held_out is not None
    assert held_out.latest == (0, 0.537598)


def test_metrics_become_series_and_what_is_no_number_is_left_out() -> None:
    state = state_of(until_step_finished(3))
    state.apply(StepFinished(2000.0, "grpo", 4, 0.1, {"reward/mean": None, "new": float("nan"), "x": 1}))  # type: ignore[dict-item]
    reward = state.metric("grpo", "reward/mean")
    assert reward is not None
    assert [point.step for point in reward.points()] == [1, 2, 3]
    assert state.step_done == 4
    assert state.metric("grpo", "no such") is None


def test_a_failure_stays() -> None:
    taken = until_started("ref_logprob", 5)
    at = taken[-1].at + 1
    failed = OpFailed(at, "grpo", 5, "ref_logprob", "ValueError: no\n" * 10_000)
    state = state_of([*taken, failed, RunFinished(at, "failed", 4)])
    assert state.failure is not None
    assert len(state.failure.error) < 20_000
    assert (state.outcome, state.step_done) == ("failed", 4)
    assert status_of(state, "ref_logprob", at).state == "failed"
    assert status_of(state, "update_policy", at).waits_for == ()


def test_an_op_that_ran_when_the_run_ended_does_not_run_on() -> None:
    taken = until_started("generate", 5)
    state = state_of([*taken, RunFinished(taken[-1].at + 1, "stopped", 4)])
    status = status_of(state, "generate", taken[-1].at + 100)
    assert (status.state, status.seconds) == ("waiting", 1.0)


def test_a_run_that_is_gone_is_not_running() -> None:
    state = state_of(until_started("generate", 5))
    state.lose()
    assert (state.outcome, state.ended_at) == ("gone", state.heard_at)


def test_pause_and_stop() -> None:
    state = state_of(until_step_finished(3))
    state.apply(RunPaused(2000.0, 4))
    assert state.paused
    state.apply(RunContinued(2001.0, 4))
    assert not state.paused
    state.apply(RunPaused(2002.0, 4))
    state.apply(StepStarted(2003.0, "grpo", 4))
    assert not state.paused
    state.apply(StopRequested(2004.0, "q"))
    assert state.stopping_by == "q"
    state.apply(RunFinished(2005.0, "stopped", 4))
    assert (state.outcome, state.step_done) == ("stopped", 4)


def test_a_run_that_goes_on_has_forgotten_how_it_ended_and_what_it_does_again() -> None:
    taken = until_started("ref_logprob", 5)
    failed = OpFailed(taken[-1].at, "grpo", 5, "ref_logprob", "no")
    state = state_of([*taken, failed, RunFinished(taken[-1].at, "failed", 4)])
    state.apply(RunStarted(3000.0, ("grpo", "eval"), 6, 0, resumed_from=3))
    assert (state.outcome, state.failure, state.walk, state.step_done) == (None, None, None, 3)
    reward = state.metric("grpo", "reward/mean")
    assert reward is not None
    assert [point.step for point in reward.points()] == [1, 2, 3]


def test_warnings_prints_and_console_text_are_kept_in_part() -> None:
    state = RunState()
    for number in range(3):
        state.apply(Warned(number, f"{number} " + "x" * 100_000))
    state.apply(ConsoleWritten(4.0, "y" * 100_000))
    state.apply(OpPrinted(5.0, "grpo", 1, "verify", 2, "z" * 100_000))
    assert (state.num_warnings, state.last_warning[:2]) == (3, "2 ")
    assert len(pickle.dumps(state)) < 100_000


def test_events_that_say_nothing_to_see_are_passed_over() -> None:
    state = RunState()
    state.apply(ColumnsFreed(1.0, "grpo", 1, ("a",), 1))
    assert state.heard_at is None


def test_the_end_is_estimated_from_steps_evaluations_and_saves() -> None:
    state = RunState()
    state.apply(RunStarted(0.0, ("grpo", "eval"), 100, 0))
    state.apply(StepFinished(1.0, "eval", 0, 5.0, {}))
    for step, seconds in enumerate([9.0, *[1.0] * 19], 1):
        state.apply(StepStarted(10.0 * step, "grpo", step))
        state.apply(StepFinished(10.0 * step + 1, "grpo", step, seconds, {}))
    every = RunInfo(every={"eval": 25})
    assert step_seconds(state) == 1.0
    assert seconds_left(state, every, 300.0) == 80 * 1.0 + 4 * 5.0
    assert seconds_left(state, RunInfo(), 300.0) == 80 * 1.0 + 5.0
    state.apply(StepStarted(300.0, "grpo", 21))
    assert seconds_left(state, every, 300.25) == pytest.approx(80 - 0.25 + 20)
    assert seconds_left(state, every, 900.0) == pytest.approx(79 + 20)
    state.apply(RunFinished(901.0, "stopped", 20))
    assert seconds_left(state, every, 902.0) is None


def test_the_state_does_not_grow_with_the_steps() -> None:
    state = RunState()
    sizes: dict[int, int] = {}
    for event in long_run(10_000):
        state.apply(event)
        if isinstance(event, StepFinished) and event.step in (1_000, 5_000, 10_000):
            sizes[event.step] = len(pickle.dumps(state))
    assert state.step_done == 10_000
    assert max(sizes.values()) < 1.6 * min(sizes.values()), sizes
    assert max(sizes.values()) < 300_000


def test_an_event_is_as_cheap_late_in_a_run_as_early() -> None:
    state = RunState()
    calls: dict[bool, int] = {True: 0, False: 0}
    for event in long_run(3_000):
        step = getattr(event, "step", 0)
        if step in range(100, 200) or step in range(2_900, 3_000):
            calls[step > 200] += calls_of(partial(state.apply, event))
        else:
            state.apply(event)
    assert 0 < calls[True] < 1.2 * calls[False], calls


def test_an_info_survives_json() -> None:
    given = replace(info(), steers=False)
    read = RunInfo.from_json(given.to_json())
    assert read == given
    assert read.training == "grpo"
    assert read.plan("nope") is read.graph("nope") is None
    assert RunInfo.from_json(RunInfo().to_json()) == RunInfo()
