"""One plain line for each step, evaluation, save, warning and failure."""

import re

from recorded_run import events, until_step_finished

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
from dagrl.tui.lines import Lines


def lines_of(taken: list[Event], num_steps: int = 6) -> list[str]:
    lines = Lines("grpo", num_steps)
    return [line for event in taken for line in lines.lines(event)]


def test_the_lines_of_the_recorded_run() -> None:
    assert lines_of(list(events()))[:4] == [
        "eval after step 0: reward 0.538 larger/easy 0.854 larger/hard 0.432 2.51 s",
        "step 1/6 reward 0.484 kl 0.0000 entropy 0.484 len 4.0 gap 0.0060 0.51 s "
        "(update_policy 214 generate 166 ref_logprob 118 ms) eta 3s",
        "step 2/6 reward 0.344 kl 0.0001 entropy 0.487 len 4.0 gap 0.0062 0.27 s "
        "(update_policy 130 generate 73 ref_logprob 50 ms) eta 2s",
        "step 3/6 reward 0.281 kl 0.0011 entropy 0.553 len 4.1 gap 0.0085 0.24 s "
        "(update_policy 126 generate 59 ref_logprob 47 ms) eta 1s",
    ]
    assert "saved step 3: 5.1 MiB in 19 ms" in lines_of(list(events()))


def test_every_step_can_be_parsed() -> None:
    steps = [line for line in lines_of(list(events())) if line.startswith("step ")]
    form = r"step (\d+)/6( [a-z]+ [\d.]+)+ [\d.]+ s \(([a-z_]+ \d+ ?)+ ms\) eta \d+s"
    assert [int(re.fullmatch(form, line)[1]) for line in steps] == [1, 2, 3, 4, 5, 6]  # type: ignore[index]


def test_each_kind_of_line() -> None:
    assert lines_of(
        [
            Warned(1.0, "UserWarning: old\nuse new"),
            CheckpointSaved(2.0, 7, 1.5, 3 << 20),
            OpFailed(3.0, "grpo", 8, "verify", "\nValueError: no\n  at x"),
            OpFailed(3.0, "grpo", 8, "verify", ""),
            OpPrinted(4.0, "grpo", 8, "verify", 1, "one\n\x1b[31mtwo\n"),
            RunPaused(5.0, 9),
            RunContinued(6.0, 9),
        ]
    ) == [
        "warning: UserWarning: old↵use new",
        "saved step 7: 3.0 MiB in 1.5 s",
        "failed: verify of grpo in step 8: ValueError: no",
        "failed: verify of grpo in step 8: without a message",
        "[verify rank 1] one",
        "[verify rank 1] ␛[31mtwo",
        "paused before step 9",
        "goes on with step 9",
    ]


def test_what_a_node_prints_is_not_cut() -> None:
    (line,) = lines_of([OpPrinted(4.0, "grpo", 8, "verify", 1, "x" * 10_000)])
    assert line == f"[verify rank 1] {'x' * 10_000}"


def test_batches_of_an_op_add_up_within_a_walk_only() -> None:
    taken = [
        StepStarted(1.0, "grpo", 1),
        *[OpFinished(1.0, "grpo", 1, "generate", 1, 0.25, 0.0, 0)] * 2,
        StepFinished(2.0, "grpo", 1, 0.5, {"reward/mean": None}),  # type: ignore[dict-item]
        StepStarted(2.0, "grpo", 2),
        OpFinished(2.5, "grpo", 2, "generate", 1, 0.25, 0.0, 0),
        StepFinished(3.0, "grpo", 2, 0.3, {}),
    ]
    assert lines_of(taken, 2) == [
        "step 1/2 reward nan 0.50 s (generate 500 ms) eta 0s",
        "step 2/2  0.30 s (generate 250 ms) eta 0s",
    ]


def test_a_step_alone_makes_one_line() -> None:
    assert len(lines_of(until_step_finished(1))) == 2  # the evaluation before it is the other
