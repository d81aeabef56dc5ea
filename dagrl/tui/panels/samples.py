"""What the model just said: right and wrong answers side by side with what was asked."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import zip_longest

from rich.text import Text

from dagrl.data.reported import Sample
from dagrl.executor.events import RowsSampled
from dagrl.tui.canvas import box, fit, join, line
from dagrl.tui.formats import number
from dagrl.tui.glyphs import LABEL, LOOKS, WARNING
from dagrl.tui.run_info import RunInfo
from dagrl.tui.state import RunState
from dagrl.tui.text import cells, folded, pad, pad_left, safe

_REWARD = 8
_HEADINGS = ("prompt", "response", "answer")
_MOST_LINES = 6


def samples_panel(state: RunState, info: RunInfo, width: int, height: int, now: float, page: int = 0) -> list[Text]:
    """The samples of the last step that has some, a page of them, in a box."""
    rows = latest_samples(state)
    if rows is None or not rows.samples:
        return box("samples", [line(("none yet", LABEL))], width, height)
    room = max(1, height - 2)
    pages = -(-len(rows.samples) // room)
    shown = mixed(rows.samples)[page % pages * room :][:room]
    note = f"{page % pages + 1} of {pages}" if pages > 1 else ""
    title = f"samples · {safe(rows.pipeline)}, step {rows.step}"
    return box(title, sample_lines(shown, width - 4, room), width, height, note)


def latest_samples(state: RunState) -> RowsSampled | None:
    """The samples of the pipeline that was on screen last."""
    return max(state.samples.values(), key=lambda rows: rows.at, default=None)


def mixed(samples: Sequence[Sample]) -> list[Sample]:
    """High and low rewards in turn, so that any few of them show both; rows without one last."""
    ranked = sorted(samples, key=lambda each: -(each.reward or 0.0))
    scored = [each for each in ranked if each.reward is not None]
    half = (len(scored) + 1) // 2
    high, low = scored[:half], scored[half:][::-1]
    in_turn = [each for index, one in enumerate(high) for each in (one, *low[index : index + 1])]
    return [*in_turn, *(each for each in ranked if each.reward is None)]


def sample_lines(samples: Sequence[Sample], width: int, height: int) -> list[Text]:
    """Reward, prompt, response and the known answer of each, in columns as wide as they need to be.

    Where there is a line for them there are headings, and where there are more long texts are folded.
    """
    texts = [(safe(each.prompt), safe(each.response), safe(each.answer)) for each in samples]
    has_headings = height > len(samples)
    room = max(0, width - _REWARD - 3 - 6)
    rows = [*texts, _HEADINGS] if has_headings else texts
    columns = _shares([max((cells(row[column]) for row in rows), default=0) for column in range(3)], room)
    most = min(_MOST_LINES, (height - has_headings) // max(1, len(samples)))
    heading = [line((f"{'reward':>{_REWARD + 1}}  ", LABEL), (_row(_HEADINGS, columns), LABEL))] if has_headings else []
    lines = [each for sample, row in zip(samples, texts, strict=True) for each in _folded(sample, row, columns, most)]
    return [fit(each, width) for each in (*heading, *lines)]


def _folded(sample: Sample, texts: tuple[str, str, str], columns: Sequence[int], most: int) -> list[Text]:
    """The lines of one sample."""
    parts = [folded(text, column, max(1, most)) for text, column in zip(texts, columns, strict=True)]
    lines: list[Text] = []
    for asked, said, known in zip_longest(*parts, fillvalue=""):
        prompt, response, answer = columns
        first = [(pad(asked, prompt), LABEL), ("  ▸ " if not lines else "    ", LABEL)]
        row = line(*first, pad(said, response), "  ", (pad(known, answer), LABEL))
        lines.append(join(_reward(sample) if not lines else line(" " * (_REWARD + 3)), row))
    return lines


def _row(texts: tuple[str, str, str], columns: Sequence[int]) -> str:
    prompt, response, answer = (pad(text, column) for text, column in zip(texts, columns, strict=True))
    return f"{prompt}    {response}  {answer}"


def _reward(sample: Sample) -> Text:
    """Right is what has a reward above zero."""
    value = sample.reward
    if value is None:
        return line(("? ", WARNING), (pad_left("none", _REWARD - 1), LABEL), "  ")
    glyph, style = LOOKS["done"] if value > 0 else LOOKS["failed"]
    return line((f"{glyph} ", style), pad_left(number(value), _REWARD - 1), "  ")


def _shares(needs: Sequence[int], room: int) -> list[int]:
    """Cells for each column: what it needs, or where that is too much a fair part of what the narrower ones leave."""
    shares = [0] * len(needs)
    left = max(0, room)
    for waiting, column in enumerate(sorted(range(len(needs)), key=lambda each: needs[each])):
        shares[column] = min(needs[column], left // (len(needs) - waiting))
        left -= shares[column]
    return shares
