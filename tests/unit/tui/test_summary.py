"""What stays on the terminal when a view closes."""

from dataclasses import replace

from recorded_run import events, info, state_of, until_started, until_step_finished

from dagrl.executor.events import OpFailed, RunFinished, RunStarted, StopRequested, Warned
from dagrl.tui.run_info import RunInfo
from dagrl.tui.state import RunState
from dagrl.tui.summary import summary_text

RESUME = "go on with  dagrl run pipelines/grpo.py --out runs/grpo --resume auto"


def test_a_run_that_is_done() -> None:
    assert summary_text(state_of(events()), info()).splitlines() == [
        "dagrl grpo: done after 6 steps in 0:00:07",
        "reward      0.484 -> 0.500 (+0.0156, steps 1 to 6)",
        "held out    0.538 -> 0.556 (+0.0181, steps 0 to 6)",
        "time        steps 2.3 s (update_policy 50 %, generate 24 %, ref_logprob 23 %, prompts 0.7 %), "
        "evaluations 4.2 s, saves 76 ms",
        "saved       step 6 (9.1 MiB)",
        "folder      runs/grpo",
        "model       runs/grpo/model",
    ]


def test_a_run_that_failed_names_the_node_and_the_first_lines_of_its_error() -> None:
    taken = until_started("ref_logprob", 5)
    at = taken[-1].at + 0.1
    error = "ValueError: no\n\n" + "\n".join(f"  line {number}" for number in range(100))
    state = state_of([*taken, OpFailed(at, "grpo", 5, "ref_logprob", error), RunFinished(at, "failed", 4)])
    said = summary_text(state, info()).splitlines()
    assert said[:4] == [
        "dagrl grpo: failed after 4 steps of 6 in 0:00:04",
        "failed in   ref_logprob, step 5 of grpo",
        "            ValueError: no",
        "              line 0",
    ]
    assert RESUME in said
    assert len(said) < 20


def test_a_run_that_was_stopped_and_had_been_resumed() -> None:
    start = RunStarted(1000.0, ("grpo", "eval"), 6, 0, resumed_from=2)
    steps = [event for event in until_step_finished(4) if getattr(event, "step", 0) >= 3]
    at = steps[-1].at
    state = state_of([start, *steps, StopRequested(at, "q"), Warned(at, "old\nnew"), RunFinished(at, "stopped", 4)])
    said = summary_text(state, info()).splitlines()
    assert said[0].startswith("dagrl grpo: stopped by q after 4 steps of 6 in 0:00:0")
    assert said[0].endswith(", resumed after step 2")
    assert "warnings    1, the last: old↵new" in said
    assert RESUME in said


def test_a_run_that_is_gone() -> None:
    state = state_of(until_started("generate", 5))
    state.lose()
    assert summary_text(state, info()).startswith("dagrl grpo: gone, killed or crashed, after 4 steps of 6 in ")


def test_a_run_that_has_not_begun() -> None:
    assert summary_text(RunState(), RunInfo()).splitlines() == ["dagrl: not over after 0 steps", "saved       nothing"]


def test_shares_of_nodes_are_of_the_whole_time_also_in_the_middle_of_a_step() -> None:
    said = summary_text(state_of(until_started("update_policy", 2)), replace(info(), resume=""))
    (time,) = [line for line in said.splitlines() if line.startswith("time")]
    shares = [float(each.split(" %")[0].rsplit(" ", 1)[1]) for each in time.split("), ")[0].split("(")[1].split(", ")]
    assert sum(shares) <= 101
