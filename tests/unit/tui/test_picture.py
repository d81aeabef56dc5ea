"""The picture of the live view in the README is what the view draws today.

Its events are those of `dagrl run pipelines/grpo.py --executor local --steps 60 --set batch_size=64 --set eval_every=20
--set micro_batch_size=64` up to the middle of a step, without most of what old steps told.
After a wanted change write it anew: `DAGRL_UPDATE_SNAPSHOTS=1 pytest tests/unit/tui`, and look at it.
"""

import os
from dataclasses import replace
from pathlib import Path

from recorded_run import FOLDER, info

from dagrl.tui.event_line import read_event
from dagrl.tui.frame import frame
from dagrl.tui.state import RunState
from dagrl.tui.svg import svg

PICTURE = Path(__file__).parent / "pictures" / "live.svg"
REFRESH = "DAGRL_UPDATE_SNAPSHOTS=1 .venv/bin/python -m pytest tests/unit/tui"


def drawn() -> str:
    state = RunState()
    now = 0.0
    for line in (FOLDER / "picture.jsonl").read_bytes().splitlines():
        event = read_event(line)
        assert event is not None
        state.apply(event)
        now = event.at
    lines = frame(state, replace(info(), every={"eval": 20}), 120, 40, now + 0.02)
    return svg(lines, "dagrl run pipelines/grpo.py", "dagrl-live")


def test_the_picture_is_what_the_view_draws() -> None:
    text = drawn()
    if os.environ.get("DAGRL_UPDATE_SNAPSHOTS"):
        PICTURE.write_text(text)
    assert text == PICTURE.read_text(), f"the view changed; if that is meant: {REFRESH}"


def test_the_picture_needs_nothing_from_elsewhere_and_shows_a_run() -> None:
    text = PICTURE.read_text()
    assert text.count("http") == 1, "only the name of the format"
    for word in ("update_policy", "192/256", "critical", "held", "reward", "samples"):
        assert word in text
