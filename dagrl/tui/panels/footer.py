"""The last line: what is saved and where, warnings, and which keys there are."""

from __future__ import annotations

from itertools import zip_longest

from rich.text import Text

from dagrl.tui.canvas import Part, apart, box, fit, join, line
from dagrl.tui.formats import duration
from dagrl.tui.glyphs import KEY, LABEL, LOOKS, WARNING, State
from dagrl.tui.run_info import RunInfo
from dagrl.tui.state import RunState
from dagrl.tui.text import cells, cut, safe

_TOLD: tuple[State, ...] = ("waiting", "queued", "running", "stalled", "done", "failed")
_SIGNS = "  ".join(f"{LOOKS[state].glyph} {state}" for state in _TOLD)
_STEERING = (
    ("q", "stop after this step"),
    ("p", "pause"),
    ("s", "other samples"),
    ("?", "all keys"),
    ("Ctrl-C", "stop now"),
)
#: What stands on screen and does not explain itself.
_WORDS = (
    ("nodes", _SIGNS),
    ("=", "a call that does not run: another node computes the same"),
    ("kl", "to the reference model · entropy: both in nats per token"),
    ("length", "tokens per answer · cut off: answers that reached the limit"),
    ("clip", "tokens whose loss was clipped · grad: norm of the gradient"),
    ("gap", "in log-probability, of trained and generating weights"),
    ("slack", "what a node could take longer for nothing · ~ usual time"),
)
_SIDE_BY_SIDE, _KEY_CELLS = 110, 44
_WATCHING = (("q", "leave"), ("s", "other samples"), ("?", "all keys"))


def footer(state: RunState, info: RunInfo, width: int, now: float) -> Text:
    """One line; keys give way to what is saved, the last of them first."""
    right = _key_line(_keys(state, info), width * 3 // 5)
    return apart(_left(state, info, width - cells(right.plain)), right, width)


def help_panel(state: RunState, info: RunInfo, width: int, height: int) -> list[Text]:
    """Every key with what it does, and what signs and words mean, in a box: side by side where it is wide."""
    keys = [*_keys(state, info), ("Ctrl-L", "draw anew"), ("Ctrl-Z", "to the shell, `fg` comes back")]
    told = [line((f"{key:>8}", KEY), f"  {what}") for key, what in keys]
    words = [line((f"{word:<9}", KEY), meaning) for word, meaning in _WORDS]
    if width < _SIDE_BY_SIDE:
        return box("keys and words", [*told, line(), *(join(line("  "), each) for each in words)], width, height)
    lines = [join(fit(key, _KEY_CELLS), word) for key, word in zip_longest(told, words, fillvalue=line())]
    return box("keys and words", lines, width, height)


def _keys(state: RunState, info: RunInfo) -> list[tuple[str, str]]:
    if not info.steers:
        return list(_WATCHING)
    if state.outcome is not None:
        return []
    return [(key, "go on" if key == "p" and state.paused else what) for key, what in _STEERING]


def _key_line(keys: list[tuple[str, str]], width: int) -> Text:
    parts: list[Part] = []
    used = 0
    for key, what in keys:
        used += cells(key) + cells(what) + 4
        if used > width:
            break
        parts += [(key, KEY), (f" {what}   ", LABEL)]
    return line(*parts)


def _left(state: RunState, info: RunInfo, width: int) -> Text:
    saved = _saved(state)
    warnings = f"{state.num_warnings} warning{'' if state.num_warnings == 1 else 's'}"
    room = width - cells(saved) - cells(warnings) - 8
    folder = cut(safe(info.folder), room) if room >= 8 else ""
    parts: list[Part] = [(" ", ""), (saved, LABEL)]
    parts += [(" · ", LABEL), folder] if folder else []
    return line(*parts, (" · ", LABEL), (warnings, WARNING if state.num_warnings else LABEL))


def _saved(state: RunState) -> str:
    if state.saved is None:
        return "nothing saved yet"
    return f"saved step {state.saved.step} in {duration(state.saved.seconds)}"
