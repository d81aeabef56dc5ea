"""Whether it learns: the curves that tell, with their latest value, and the range that their height spans."""

from __future__ import annotations

from dataclasses import dataclass

from rich.text import Text

from dagrl.tui.canvas import box, fit, line
from dagrl.tui.formats import number, percent
from dagrl.tui.glyphs import CURVE, LABEL
from dagrl.tui.run_info import RunInfo
from dagrl.tui.series import Series
from dagrl.tui.sparkline import spark
from dagrl.tui.state import RunState
from dagrl.tui.text import cells, pad, pad_left, safe

_LABEL, _VALUE = 9, 8
_MOST_ROWS, _MAIN_CURVES = 3, 8
#: A curve on one row keeps so many cells before its range is told beside it, in as many for every curve.
_ROOM, _SPAN = 20, 18
#: Label, metric, and whether it is a share; in order of importance.
_CURVES = (
    ("reward", "reward/mean", False),
    ("loss", "actor/loss", False),
    ("kl", "actor/ref_kl", False),
    ("entropy", "actor/entropy", False),
    ("length", "response_length/mean", False),
    ("clip", "actor/clip_fraction", True),
    ("gap", "rollout/logprob_gap", False),
    ("grad", "actor/grad_norm", False),
    ("cut off", "response_truncated", True),
    ("lr", "actor/lr", False),
)


@dataclass(frozen=True)
class Curve:
    """A history to show; ``is_share`` ones are percentages; ``is_held_out`` ones have gaps between evaluations."""

    label: str
    series: Series
    is_share: bool = False
    is_held_out: bool = False


def learning_panel(state: RunState, info: RunInfo, width: int, height: int, now: float) -> list[Text]:
    """The curves in a box."""
    return box("learning", learning_lines(state, width - 4, height - 2), width, height)


def learning_lines(state: RunState, width: int, height: int, rows: int = _MOST_ROWS) -> list[Text]:
    """As many curves as fit, each on as many rows as there are for it, at most ``rows``."""
    found = curves(state)
    if not found or height < 1:
        return [line(("no step is done yet", LABEL))]
    shown = found[:_MAIN_CURVES] if height >= 2 * _MAIN_CURVES else found[:height]
    each_rows = max(1, min(rows, height // len(shown)))
    return [each for curve in shown for each in _drawn(curve, width, each_rows, state.step_done)]


def curves(state: RunState) -> list[Curve]:
    """The curves of the run, the most telling first: those that it has of the known ones, then any others."""
    by_name = {name: series for name, series in state.series.get(state.training, {}).items() if series.count}
    known = [
        Curve(label, by_name[found], is_share)
        for label, name, is_share in _CURVES
        if (found := _find(by_name, name)) is not None
    ]
    taken = {id(curve.series) for curve in known}
    others = [Curve(safe(name), series) for name, series in sorted(by_name.items()) if id(series) not in taken]
    return [*known[:1], *_held_out(state), *known[1:], *([] if len(known) > 2 else others)]


def _find(by_name: dict[str, Series], name: str) -> str | None:
    """The metric, or the first one that ends so: of calls whose node comes twice, names begin with the call's."""
    if name in by_name:
        return name
    return next((each for each in by_name if each.endswith(f"/{name}")), None)


def _held_out(state: RunState) -> list[Curve]:
    names = [name for name in state.pipelines[1:] if name in state.series]
    label = {name: "held out" if len(names) == 1 else safe(name) for name in names}
    found = {name: _find(state.series[name], "reward/mean") for name in names}
    return [
        Curve(label[name], state.series[name][metric], is_held_out=True)
        for name, metric in found.items()
        if metric is not None and state.series[name][metric].latest is not None
    ]


def _drawn(curve: Curve, width: int, rows: int, last_step: int) -> list[Text]:
    series = curve.series
    span = pad_left(_span(curve), _SPAN - 1)
    room = width - _LABEL - _VALUE - 1
    tail = f"  {span}" if rows == 1 and room - _SPAN - 1 >= _ROOM else ""
    room -= cells(tail)
    drawn = spark(series.points(), room, rows, last_step=last_step, holds=not curve.is_held_out)
    latest = series.latest.value if series.latest is not None else None
    value = percent(latest) if curve.is_share else number(latest)
    first = line((pad(curve.label, _LABEL), LABEL), pad_left(value, _VALUE), " ", (drawn[0], CURVE), (tail, LABEL))
    below = [span, *[" " * cells(span)] * rows]
    more = [line((text, LABEL), " ", (bars, CURVE)) for text, bars in zip(below, drawn[1:], strict=False)]
    return [fit(each, width) for each in (first, *more)]


def _span(curve: Curve) -> str:
    """What the height of the curve spans."""
    show = percent if curve.is_share else number
    least, greatest = curve.series.least, curve.series.greatest
    if curve.series.count < 2:
        return ""
    return f"{show(least)} to {show(greatest)}" if greatest > least else "unchanged"
