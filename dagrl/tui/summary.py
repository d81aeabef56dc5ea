"""What stays on the terminal when a view closes: how the run ended, what it learned and cost, and how to go on."""

from __future__ import annotations

from dagrl.errors import counted
from dagrl.tui.formats import clock, duration, num_bytes, number, percent
from dagrl.tui.panels.learning import Curve, curves
from dagrl.tui.run_info import RunInfo
from dagrl.tui.state import RunState
from dagrl.tui.text import pad, safe, safe_lines

_LABEL = 11
_ERROR_LINES = 6
_NODES = 4
_LITTLE = 0.005


def summary_text(state: RunState, info: RunInfo) -> str:
    """Plain lines, each with what it tells first; those that have nothing to tell are left out."""
    rows = [
        ("", [_headline(state, info)]),
        ("failed in", _failure(state)),
        *((curve.label, [_from_to(curve)]) for curve in _rewards(state)),
        ("time", _time(state)),
        ("warnings", _warnings(state)),
        ("saved", [_saved(state)]),
        ("folder", [safe(info.folder)] if info.folder else []),
        ("go on with", [safe(info.resume)] if info.resume and state.outcome != "done" else []),
        ("model", [f"{safe(info.folder)}/model"] if state.outcome == "done" and info.folder else []),
    ]
    lines = [
        f"{pad(label if index == 0 else '', _LABEL)} {text}" if label else text
        for label, texts in rows
        for index, text in enumerate(texts)
    ]
    return "\n".join(lines)


def _headline(state: RunState, info: RunInfo) -> str:
    how = {None: "not over", "gone": "gone, killed or crashed,"}.get(state.outcome, safe(state.outcome or ""))
    by = f" by {safe(state.stopping_by)}" if state.outcome == "stopped" and state.stopping_by is not None else ""
    whole = f" of {state.steps}" if state.steps and state.step_done != state.steps else ""
    taken = ""
    if state.started_at is not None and state.ended_at is not None:
        taken = f" in {clock(state.ended_at - state.started_at)}"
    resumed = f", resumed after step {state.resumed_from}" if state.resumed_from is not None else ""
    steps = counted(state.step_done, "step")
    return f"{safe(info.title)}: {how}{by} after {steps}{whole}{taken}{resumed}"


def _failure(state: RunState) -> list[str]:
    """The node, and the first lines of its error."""
    failure = state.failure
    if failure is None:
        return []
    where = f"{safe(failure.op)}, step {failure.step} of {safe(failure.pipeline)}"
    return [where, *safe_lines(failure.error, _ERROR_LINES)]


def _rewards(state: RunState) -> list[Curve]:
    """The reward and that of held-out rows, as far as there are some."""
    return [curve for curve in curves(state) if curve.is_held_out or curve.label == "reward"]


def _from_to(curve: Curve) -> str:
    first, latest = curve.series.first, curve.series.latest
    if first is None or latest is None:
        return "-"
    if curve.series.count == 1:
        return f"{number(first.value)} (step {first.step})"
    change = latest.value - first.value
    return f"{number(first.value)} -> {number(latest.value)} ({change:+.3g}, steps {first.step} to {latest.step})"


def _time(state: RunState) -> list[str]:
    """The time of nodes of training steps as shares of it, and that of evaluations and saves."""
    nodes = sorted(state.seconds_by_op.items(), key=lambda item: -item[1])
    walk = state.walk
    is_open = walk is not None and walk.seconds is None and walk.pipeline == state.training
    whole = state.training_seconds + (sum(run.seconds for run in walk.ops.values()) if walk and is_open else 0.0)
    shown = [(op, seconds) for op, seconds in nodes[:_NODES] if whole > 0 and seconds / whole >= _LITTLE]
    shares = ", ".join(f"{safe(op)} {percent(seconds / whole)}" for op, seconds in shown)
    parts = [f"steps {duration(whole)}" + (f" ({shares})" if shares else "")] if whole > 0 else []
    parts += [f"evaluations {duration(state.evaluation_seconds)}"] if state.evaluation_seconds else []
    parts += [f"saves {duration(state.saving_seconds)}"] if state.saving_seconds else []
    return [", ".join(parts)] if parts else []


def _warnings(state: RunState) -> list[str]:
    return [f"{state.num_warnings}, the last: {safe(state.last_warning)}"] if state.num_warnings else []


def _saved(state: RunState) -> str:
    if state.saved is None:
        return "nothing"
    return f"step {state.saved.step} ({num_bytes(state.saved.bytes)})"
