"""The first line: what runs and where, how far it is, how fast, and when it will be over."""

from __future__ import annotations

from rich.text import Text

from dagrl.tui.canvas import Part, apart, bar, cut_line, fit, join, line
from dagrl.tui.eta import seconds_left, step_seconds
from dagrl.tui.formats import clock, duration, percent
from dagrl.tui.glyphs import CURVE, FRAME, LABEL, LOOKS, TITLE
from dagrl.tui.run_info import RunInfo
from dagrl.tui.state import RunState
from dagrl.tui.text import cells, cut, safe

_OUTCOMES = {
    "done": ("✓ done", "green"),
    "stopped": ("■ stopped", "yellow"),
    "failed": ("✗ failed", "bold red"),
    "gone": ("✗ gone", "bold red"),
}


def header(state: RunState, info: RunInfo, width: int, now: float) -> list[Text]:
    """One line where it is wide, two where it is not."""
    if width >= 100:
        wide = join(_progress(state, width // 5), line("  "), _pace(state, info, now))
        return [apart(_name(state, info, width // 2), wide, width)]
    if width < 60:
        short = join(_progress(state, 0), line("  "), _eta(state, info, now))
        return [fit(_name(state, info, width), width), fit(short, width)]
    pace = _pace(state, info, now) if _has_eta(state, info) else line(" ")
    bar_width = width - cells(_progress(state, 0).plain) - cells(pace.plain) - 2
    return [
        apart(_name(state, info, width - 16), _elapsed(state, info, now), width),
        apart(_progress(state, bar_width), pace, width),
    ]


def run_status(state: RunState) -> Part:
    """One word for how the run is, with its glyph."""
    if state.outcome is not None:
        return _OUTCOMES.get(state.outcome, (f"■ {safe(state.outcome)}", "yellow"))
    if state.paused:
        return "‖ paused", LOOKS["paused"].style
    if state.failure is not None:
        return "✗ failing", LOOKS["failed"].style
    if state.stopping_by is not None:
        return "■ stopping", "yellow"
    if state.started_at is None:
        return "○ starting", LABEL
    return "● running", LOOKS["running"].style


def _name(state: RunState, info: RunInfo, width: int) -> Text:
    status = run_status(state) if info.at is None else (f"■ after step {info.at}", "yellow")
    title = safe(info.title) or safe(state.training)
    parts = [safe(" + ".join(info.models)), safe(info.executor)]
    about = "".join(f" · {part}" for part in parts if part)
    return cut_line(line(" ", status, "  ", (cut(title, 40), TITLE), (about, LABEL)), width)


def _progress(state: RunState, width: int) -> Text:
    share = state.step_done / state.steps if state.steps > 0 else 0.0
    filled, rest = bar(share, width)
    steps = f"{state.step_done}/{state.steps}" if state.steps else str(state.step_done)
    whole = "" if not state.steps else f" {percent(min(1.0, max(0.0, share))).replace('.0 ', ' '):>5}"
    return line((" step ", LABEL), steps, " ", (filled, CURVE), (rest, FRAME), whole)


def _pace(state: RunState, info: RunInfo, now: float) -> Text:
    step = step_seconds(state)
    each = f"{duration(step)}/step  " if step is not None else ""
    return join(line((each, LABEL)), _eta(state, info, now), line(" "))


def _eta(state: RunState, info: RunInfo, now: float) -> Text:
    if not _has_eta(state, info):
        return _elapsed(state, info, now)
    return line(("ETA ", LABEL), clock(seconds_left(state, info, now)))


def _has_eta(state: RunState, info: RunInfo) -> bool:
    """Whether it goes on; until it has started there is only the time that it is waited for."""
    is_starting = state.started_at is None and info.opened_at is not None
    return state.outcome is None and not state.paused and info.at is None and not is_starting


def _elapsed(state: RunState, info: RunInfo, now: float) -> Text:
    since = state.started_at if state.started_at is not None else info.opened_at
    if since is None:
        return line()
    end = state.ended_at if state.ended_at is not None else now
    return line(("for ", LABEL), clock(end - since), " ")
