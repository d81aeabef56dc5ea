"""Whole frames, word for word, at several sizes and moments of a recorded run.

After a wanted change write the files anew: `DAGRL_UPDATE_SNAPSHOTS=1 pytest tests/unit/tui`, and read the diff.
"""

import os
import re
from collections.abc import Callable
from dataclasses import replace
from functools import partial
from pathlib import Path

import pytest
from recorded_run import events, info, long_run, state_of, until, until_started, until_step_finished
from rich.cells import cell_len
from rich.text import Text
from support import calls_of

from dagrl.data.reported import RankMemory
from dagrl.executor.events import (
    Event,
    MemoryUsed,
    OpFailed,
    OpProgressed,
    RunFinished,
    RunPaused,
    RunStarted,
    StopRequested,
    Warned,
)
from dagrl.tui.frame import frame
from dagrl.tui.panels.dag import node_list
from dagrl.tui.run_info import RunInfo
from dagrl.tui.state import RunState

SNAPSHOTS = Path(__file__).parent / "snapshots"
REFRESH = "DAGRL_UPDATE_SNAPSHOTS=1 .venv/bin/python -m pytest tests/unit/tui"
SIZES = [(200, 50), (120, 40), (80, 24), (40, 15)]
ERROR = "WorkerError: rank 1 raised ValueError: logits are not finite\n\n  in `ref_logprob` (pipelines/grpo.py:56)\n"


def generating() -> list[Event]:
    return until(lambda e: isinstance(e, OpProgressed) and (e.step, e.op, e.done) == (4, "generate", 32))


def updating() -> list[Event]:
    return until(lambda e: isinstance(e, OpProgressed) and (e.step, e.op, e.done) == (5, "update_policy", 2))


def failed() -> list[Event]:
    taken = until_started("ref_logprob", 5)
    at = taken[-1].at + 0.1
    warned = Warned(at, "UserWarning: the tokenizer has no pad token")
    return [*taken, warned, OpFailed(at, "grpo", 5, "ref_logprob", ERROR), RunFinished(at, "failed", 4)]


def paused() -> list[Event]:
    taken = until_step_finished(4)
    return [*taken, RunPaused(taken[-1].at, 5)]


MOMENTS: dict[str, tuple[Callable[[], list[Event]], float]] = {
    "generate": (generating, 0.02),
    "update": (updating, 0.02),
    "evaluation": (lambda: until_started("generate", 6, "eval"), 0.4),
    "stalled": (lambda: until_started("ref_logprob", 5), 4.0),
    "failed": (failed, 60.0),
    "end": (lambda: list(events()), 60.0),
    "paused": (paused, 30.0),
}


def shown(taken: list[Event], width: int, height: int, after: float, given: RunInfo | None = None) -> list[Text]:
    return frame(state_of(taken), given or info(), width, height, taken[-1].at + after)


def assert_size(lines: list[Text], width: int, height: int) -> None:
    assert len(lines) == height
    assert {cell_len(each.plain) for each in lines} <= {width}


def plain(lines: list[Text]) -> str:
    return "\n".join(each.plain.rstrip() for each in lines)


@pytest.mark.parametrize(("width", "height"), SIZES, ids=[f"{width}x{height}" for width, height in SIZES])
@pytest.mark.parametrize("moment", MOMENTS)
def test_the_frame_is_the_snapshot(moment: str, width: int, height: int) -> None:
    taken, after = MOMENTS[moment]
    lines = shown(taken(), width, height, after)
    assert_size(lines, width, height)
    text = plain(lines) + "\n"
    file = SNAPSHOTS / f"frame_{moment}_{width}x{height}.txt"
    if os.environ.get("DAGRL_UPDATE_SNAPSHOTS"):
        file.write_text(text)
    assert text == file.read_text(), f"the frame changed; if that is meant: {REFRESH}"


def test_what_the_snapshots_must_say() -> None:
    for width, height in SIZES:
        said = {moment: (SNAPSHOTS / f"frame_{moment}_{width}x{height}.txt").read_text() for moment in MOMENTS}
        assert "● generate" in said["generate"]
        assert "● update_policy" in said["update"]
        assert "! ref_logprob stalls: runs for 4.0 s" in said["stalled"]
        assert "✗ ref_logprob failed" in said["failed"] or "ref_logprob failed · grpo, step 5" in said["failed"]
        assert "‖ paused" in said["paused"]
        assert "✓ done" in said["end"]
        if width >= 80:
            assert "logits are not finite" in said["failed"]
            assert "go on with  dagrl run" in said["failed"]
            assert "update_policy waits for it" in said["stalled"]
            assert "held out" in said["end"]
        if width >= 120:
            assert "2/4 micro-bat" in said["update"]
            assert "ms: generate → ref_logprob → update_policy" in said["update"]
            assert "with update_policy twice as fast" in said["update"]


@pytest.mark.parametrize("width", [*range(1, 60), 71, 72, 73, 99, 100, 109, 110, 111, 300])
def test_every_size_is_filled_exactly(width: int) -> None:
    for taken in (generating(), failed(), list(events())):
        for height in (1, 2, 3, 5, 8, 17, 18, 31, 32, 60):
            assert_size(shown(taken, width, height, 0.1), width, height)


def test_every_moment_of_the_run_has_a_frame() -> None:
    state = RunState()
    for width, height in SIZES:
        assert_size(frame(state, info(), width, height, 0.0), width, height)
    for event in events():
        state.apply(event)
        for width, height in SIZES:
            assert_size(frame(state, info(), width, height, event.at), width, height)


def test_panels_stand_still_while_a_step_goes_on() -> None:
    edges: set[tuple[tuple[int, ...], ...]] = set()
    for step in (3, 4, 5):
        state = state_of(until_step_finished(step - 1))
        for event in [e for e in events() if getattr(e, "pipeline", "") == "grpo" and getattr(e, "step", 0) == step]:
            state.apply(event)
            lines = frame(state, info(), 120, 40, event.at)
            edges.add(tuple(tuple(i for i, c in enumerate(each.plain) if c in "┌┐└┘") for each in lines))
    assert len(edges) == 1


def test_a_run_whose_plan_is_not_known_is_shown_from_its_events() -> None:
    for width, height in SIZES:
        lines = shown(updating(), width, height, 0.1, RunInfo())
        assert_size(lines, width, height)
        assert "● update_policy" in plain(lines)


def test_metrics_that_are_not_known_are_shown_by_their_names() -> None:
    state = RunState()
    state.apply(RunStarted(0.0, ("grpo",), 0, 0))
    last = until_step_finished(1)[-1]
    state.apply(replace(last, metrics={"zz/mine": 0.25, "aa/other": None, "nan": float("nan")}))
    text = plain(frame(state, info(), 120, 40, 1.0))
    assert "zz/mine" in text
    assert "0.250" in text


def test_a_resumed_run_starts_from_where_it_was() -> None:
    taken: list[Event] = [RunStarted(5.0, ("grpo", "eval"), 6, 0, resumed_from=3)]
    assert "step 3/6" in plain(shown(taken, 120, 40, 0.0))


def test_a_request_to_stop_and_a_warning_are_told() -> None:
    taken = generating()
    at = taken[-1].at
    warned = [*taken, Warned(at, "one"), Warned(at, "two")]
    text = plain(shown(warned, 120, 40, 0.0))
    assert "! two" in text
    assert "2 warnings" in text
    stopping = plain(shown([*warned, StopRequested(at, "q")], 120, 40, 0.0))
    assert "■ stops after this step" in stopping
    assert "■ stopping" in stopping


def test_keys_are_explained_on_demand() -> None:
    state = state_of(generating())
    for width, height in ((120, 40), (80, 24)):
        helped = frame(state, info(), width, height, 0.0, keys=True)
        assert_size(helped, width, height)
        assert "stop after this step" in plain(helped)
        assert "to the shell" in plain(helped)
    watching = frame(state, replace(info(), steers=False), 120, 40, 0.0, keys=True)
    assert "stop" not in plain(watching).split("keys", 1)[1]


def test_pages_of_samples_turn_in_a_circle() -> None:
    rows = next(e for e in events() if type(e).__name__ == "RowsSampled")
    many = replace(rows, samples=rows.samples * 5)
    state = state_of([*generating(), many])
    pages = [plain(frame(state, info(), 120, 40, 0.0, sample_page=page)) for page in (-1, 0, 1, 2, 3)]
    told = [re.search(r"(\d) of 3 ┐", page) for page in pages]
    assert [each and each[1] for each in told] == ["3", "1", "2", "3", "1"]
    assert all("▸" in page for page in pages)


def test_the_fullest_ranks_are_shown_of_many() -> None:
    ranks = tuple(RankMemory(1 << 30, 0, 0, (1 + rank) << 30, 80 << 30) for rank in range(64))
    state = state_of([*generating(), MemoryUsed(0.0, "grpo", 4, "main", ranks)])
    text = plain(frame(state, info(), 120, 40, 0.0))
    assert "rank 63" in text
    assert "more ranks, none fuller" in text
    assert "rank 0 " not in text


def test_a_list_that_is_cut_keeps_the_running_node_and_counts_the_others() -> None:
    last = updating()[-1].at
    for height in (1, 2, 3, 4, 5):
        lines = plain(node_list(state_of(updating()), info(), 60, height, last)).splitlines()
        assert len(lines) == height
        assert "● update_policy" in lines[max(0, height - 2)]
        assert height == 1 or lines[-1] == f"… {7 - height} above"
    assert "below" in plain(node_list(state_of(generating()), info(), 60, 4, last))
    assert "…" not in plain(node_list(state_of(updating()), info(), 100, 6, last))


def test_what_is_waited_for_before_the_first_event_is_told_with_its_time() -> None:
    waiting = replace(info(), opened_at=100.0)
    for width, height in SIZES:
        text = plain(frame(RunState(), waiting, width, height, 112.0))
        assert "0:00:12" in text
        assert "ETA" not in text
        assert width < 80 or "models are being loaded" in text


def test_a_run_as_it_was_then_does_not_look_as_if_it_went_on() -> None:
    for width, height in SIZES:
        text = plain(shown(until_step_finished(4), width, height, 0.0, replace(info(), at=4)))
        assert "■ after step 4" in text
        assert "running" not in text
        assert "ETA" not in text


@pytest.mark.parametrize("unit", ["rows", "tokens of the longest response"])
def test_progress_is_readable_in_a_few_cells(unit: str) -> None:
    taken = generating()
    told = OpProgressed(taken[-1].at, "grpo", 4, "generate", 0, 3, 8, unit)
    for width, height in SIZES:
        assert f"3/8 {unit[:4]}" in plain(shown([*taken, told], width, height, 0.0))


def test_a_failed_node_is_shown_with_the_place_of_its_call() -> None:
    (title,) = [each for each in plain(shown(failed(), 120, 40, 0.0)).splitlines() if "failed ·" in each]
    assert "grpo.py:56" in title


def test_long_responses_are_folded_where_there_is_room() -> None:
    rows = next(e for e in events() if type(e).__name__ == "RowsSampled")
    words = " ".join(f"word{number}" for number in range(40))
    long = replace(rows, samples=(replace(rows.samples[0], response=words), *rows.samples[1:2]))
    text = plain(shown([*generating(), long], 120, 40, 0.0))
    assert all(f"word{number} " in f"{text} " or f"word{number}\n" in text for number in range(20))
    assert "reward  prompt" in text
    assert_size(shown([*generating(), long], 120, 40, 0.0), 120, 40)


def test_no_information_is_in_colours_alone() -> None:
    """Each state of a node has a glyph of its own."""
    from dagrl.tui.glyphs import LOOKS

    assert len({look.glyph for look in LOOKS.values()}) == len(LOOKS)
    assert all(cell_len(look.glyph) == 1 for look in LOOKS.values())


def test_a_frame_is_little_work_however_long_the_run() -> None:
    calls: dict[int, int] = {}
    for steps in (400, 4_000):
        state = state_of(long_run(steps))
        frame(state, info(), 120, 40, 0.0)
        calls[steps] = calls_of(partial(frame, state, info(), 120, 40, 0.1))
    assert calls[400] < 30_000
    assert calls[4_000] < 1.3 * calls[400], calls


def test_a_pause_that_is_asked_for_is_told_until_it_begins() -> None:
    taken = updating()
    state, now = state_of(taken), taken[-1].at
    state.pause_asked = True
    for width, height in SIZES[:3]:
        assert "pauses after this step" in plain(frame(state, info(), width, height, now))
    state.apply(RunPaused(now, state.step_done))
    told = plain(frame(state, info(), 120, 40, now))
    assert "pauses after this step" not in told
    assert "‖ paused before step" in told


def test_a_time_beyond_all_numbers_breaks_no_frame() -> None:
    state = state_of(list(events()))
    assert state.last_walk is not None
    for run in state.last_walk.ops.values():
        run.seconds, run.started_at = 1e300, -1e300
    for width, height in SIZES:
        assert_size(frame(state, info(), width, height, 0.0), width, height)
