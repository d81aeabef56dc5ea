"""Where the time of the last step went, and what would make the next one faster."""

from __future__ import annotations

from collections.abc import Mapping

from rich.text import Text

from dagrl.compiler.plan import Plan
from dagrl.errors import counted
from dagrl.tui.canvas import box, cut_line, fit, join, line
from dagrl.tui.critical_path import Span, StepTime, best_to_halve, spans_of, step_time
from dagrl.tui.formats import duration, percent
from dagrl.tui.glyphs import CURVE, LABEL
from dagrl.tui.run_info import RunInfo
from dagrl.tui.state import RunState
from dagrl.tui.text import cells, cut, pad, pad_left, safe
from dagrl.tui.walk_state import Walk

_NAME, _TIME, _SHARE, _NOTE = 18, 9, 6, 17
#: On one line: cells for the rest and the unit, and for what stands behind each name.
_OTHER, _BAR_AND_NUMBER = 18, 9
_ON_CHAIN, _BESIDE = "█", "▒"
#: Less than these shares of the step are not worth a word, or a lane.
_LITTLE, _TINY, _WORTH = 0.01, 0.001, 0.02
#: Steps of so many seconds are told in whole seconds on one line.
_LONG = 20.0


def last_step_panel(state: RunState, info: RunInfo, width: int, height: int, now: float) -> list[Text]:
    """A lane for each op, from the start of the step to its end, and what they say together, in a box."""
    walk = state.last_walk
    plan = info.plan(walk.pipeline) if walk is not None else None
    if walk is None or plan is None:
        return box("last step", [line(("no step is done yet", LABEL))], width, height)
    times = step_time(walk, plan)
    spans = spans_of(walk, plan)
    notes = _notes(times, spans, plan, width - 4)
    room = max(1, height - 2 - len(notes))
    lanes = _lanes(walk, spans, times, plan, width - 4, room)
    between = [line()] if len(lanes) < room else []
    return box(step_title(state), [*lanes, *between, *notes], width, height)


def step_title(state: RunState) -> str:
    """Which step the last one was, and how long it took."""
    walk = state.last_walk
    if walk is None or walk.seconds is None:
        return "last step"
    return f"last step · {walk.step} · {duration(walk.seconds)}"


def step_bar(state: RunState, info: RunInfo, width: int) -> Text:
    """The last step on one line: each op's share as a bar with its name and time, then the rest."""
    walk = state.last_walk
    plan = info.plan(walk.pipeline) if walk is not None else None
    if walk is None or plan is None:
        return line(("no step is done yet", LABEL))
    times = step_time(walk, plan)
    names = op_names(plan)
    ops = {names[op]: span.seconds for op, span in spans_of(walk, plan).items()}
    whole = (sum(ops.values()) + times.between) or 1.0
    shown = _longest(ops, width - _OTHER, _WORTH * whole)
    rest = whole - sum(shown.values())
    if rest >= _WORTH * whole:
        shown["other"] = rest
    unit, scale = ("ms", 1000) if times.seconds < _LONG else ("s", 1)
    texts = {name: (f"{cut(name, 14)} ", f" {seconds * scale:.0f}  ") for name, seconds in shown.items()}
    room = max(0, width - cells(unit) - sum(cells(before) + cells(after) for before, after in texts.values()))
    pieces = [
        part
        for name, (before, after) in texts.items()
        for part in (
            (before, LABEL),
            (_ON_CHAIN * int(min(max(1.0, shown[name] / whole * room), max(1, room))), CURVE),
            after,
        )
    ]
    return fit(line(*pieces, (unit, LABEL)), width)


def _longest(ops: Mapping[str, float], width: int, least: float) -> dict[str, float]:
    """The ops that are told, in their order: as many of the longest as have room for a name, a bar and a number."""
    taken: set[str] = set()
    for name in sorted(ops, key=lambda name: -ops[name]):
        width -= min(14, cells(name)) + _BAR_AND_NUMBER
        if width < 0 or ops[name] < least:
            break
        taken.add(name)
    return {name: seconds for name, seconds in ops.items() if name in taken}


def op_names(plan: Plan) -> dict[str, str]:
    """What each op of the plan is called on screen."""
    runs = {op.id: safe(op.call) for op in plan.runs}
    return {op.id: runs[op.id] if op.id in runs else safe(op.id.replace(":", " ").partition("@")[0]) for op in plan.ops}


def _lanes(walk: Walk, spans: Mapping[str, Span], times: StepTime, plan: Plan, width: int, height: int) -> list[Text]:
    """The longest ops, in the order of the plan, and the rest in one line."""
    names = op_names(plan)
    worth = [op for op in spans if spans[op].seconds >= _TINY * times.seconds]
    shown = sorted(sorted(worth, key=lambda op: -spans[op].seconds)[: height - 1], key=list(spans).index)
    room = width - _NAME - _TIME - _SHARE - 1
    lanes = [_lane(names[op], spans[op], op in times.path, walk, times.seconds, room) for op in shown]
    hidden = sum(spans[op].seconds for op in spans if op not in shown)
    more = len(worth) - len(shown)
    label = f"other, {counted(more, 'op')}" if more else "other"
    return [*lanes, _row((label, LABEL), line(" " * max(0, room)), times.between + hidden, times.seconds)]


def _lane(name: str, span: Span, is_on_path: bool, walk: Walk, whole: float, width: int) -> Text:
    """The op's time as a bar at its place in the step: full on the longest chain, shaded beside it."""
    scale = max(0, width) / whole if whole > 0 else 0.0
    start = int(min(max(0.0, (span.start - walk.started_at) * scale), max(0, width - 1)))
    length = int(min(max(1.0, span.seconds * scale + 0.5), max(0, width - start)))
    lane = line(" " * start, ((_ON_CHAIN if is_on_path else _BESIDE) * length, CURVE))
    return _row((name, ""), fit(lane, max(0, width)), span.seconds, whole)


def _row(label: tuple[str, str], lane: Text, seconds: float, whole: float) -> Text:
    name, style = label
    share = percent(seconds / whole) if whole > 0 else ""
    head = line((pad(name, _NAME), style), " ")
    return join(head, lane, line(" ", pad_left(duration(seconds), _TIME - 1), (pad_left(share, _SHARE), LABEL)))


def _notes(times: StepTime, spans: Mapping[str, Span], plan: Plan, width: int) -> list[Text]:
    """What the lanes say together: the longest chain, what runs beside it, turns, and what would save time."""
    names = op_names(plan)
    notes = [
        (_ON_CHAIN, "critical path", _chain(times, spans, names, width - _NOTE)),
        (_BESIDE, "slack", _beside(times, names)),
        (" ", "waits", _waits(times)),
        (" ", "faster by", _savings(times, spans, names, plan)),
    ]
    return [
        cut_line(line((f"{sign} ", CURVE), (pad(label, _NOTE - 2), LABEL), text), width)
        for sign, label, text in notes
        if text
    ]


def _chain(times: StepTime, spans: Mapping[str, Span], names: Mapping[str, str], width: int) -> str:
    """The longest chain of ops that need each other, without those that take next to nothing or have no room."""
    shown = [op for op in times.path if spans[op].seconds >= _LITTLE * times.path_seconds]
    while shown:
        told = f"{duration(times.path_seconds)}: {' → '.join(names[op] for op in shown)}"
        if cells(told) <= width or len(shown) == 1:
            return told
        shown.remove(min(shown, key=lambda op: spans[op].seconds))
    return ""


def _beside(times: StepTime, names: Mapping[str, str]) -> str:
    """How much longer the other ops could take for nothing, those that would soonest be on the chain first."""
    slack = sorted((seconds, op) for op, seconds in times.slack.items() if seconds >= _LITTLE * times.seconds)
    return ", ".join(f"{names[op]} {duration(seconds)}" for seconds, op in slack)


def _waits(times: StepTime) -> str:
    """The time in which nothing of the longest chain ran."""
    pools = ", ".join(map(safe, times.turn_pools))
    is_told = bool(pools) and times.turns >= _LITTLE * times.seconds
    turns = f"{duration(times.turns)} for processes that {_BESIDE} hold ({pools}), " if is_told else ""
    return f"{turns}{duration(times.between)} between nodes"


def _savings(times: StepTime, spans: Mapping[str, Span], names: Mapping[str, str], plan: Plan) -> str:
    """What would make the step faster, the most first; each saving is an upper bound."""
    savings = [(times.turns, "with more pools"), (times.between, "with no gaps between nodes")]
    best, saved = best_to_halve(spans, plan)
    if best is not None:
        savings.append((saved, f"with {names[best]} twice as fast"))
    worth = sorted((each for each in savings if each[0] >= _LITTLE * times.seconds), reverse=True)
    return ", ".join(f"{duration(seconds)} {text}" for seconds, text in worth)
