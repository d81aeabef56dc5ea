"""Lines of exact width, and boxes made of them."""

from __future__ import annotations

from collections.abc import Sequence

from rich.text import Span, Text

from dagrl.tui.formats import is_number
from dagrl.tui.glyphs import FRAME, TITLE
from dagrl.tui.text import cells, cut, pad

Part = tuple[str, str] | str
_EIGHTHS = " ▏▎▍▌▋▊▉"


def line(*parts: Part) -> Text:
    """Safe texts one after the other, each with its style."""
    spans: list[Span] = []
    plain: list[str] = []
    end = 0
    for part in parts:
        text, style = (part, "") if isinstance(part, str) else part
        plain.append(text)
        start, end = end, end + len(text)
        if style and text:
            spans.append(Span(start, end, style))
    return _text("".join(plain), spans)


def fit(text: Text, width: int) -> Text:
    """The line in exactly ``width`` cells, cut or filled on the right."""
    plain = text.plain
    missing = width - cells(plain)
    if missing == 0:
        return text
    if missing > 0:
        return _text(plain + " " * missing, text.spans)
    shown = pad(plain, width)
    kept = [Span(span.start, min(span.end, len(shown)), span.style) for span in text.spans if span.start < len(shown)]
    return _text(shown, kept)


def cut_line(text: Text, width: int) -> Text:
    """The line in at most ``width`` cells, with an ellipsis where something is cut off."""
    return text if cells(text.plain) <= width else fit(text, max(0, width))


def fit_all(lines: Sequence[Text], width: int, height: int) -> list[Text]:
    """Exactly ``height`` lines of exactly ``width`` cells."""
    fitted = [fit(each, width) for each in lines[: max(0, height)]]
    missing = height - len(fitted)
    return fitted + [line(" " * width)] * missing if missing > 0 else fitted


def join(*texts: Text) -> Text:
    """Lines one behind the other."""
    spans: list[Span] = []
    offset = 0
    for text in texts:
        spans += [Span(span.start + offset, span.end + offset, span.style) for span in text.spans]
        offset += len(text)
    return _text("".join(text.plain for text in texts), spans)


def apart(left: Text, right: Text, width: int) -> Text:
    """One at the left, the other at the right end of the line; the left one is cut where both do not fit."""
    room = width - cells(right.plain)
    return fit(right, width) if room <= 0 else join(fit(left, room), right)


def beside(*columns: Sequence[Text]) -> list[Text]:
    """Blocks of equal height side by side."""
    return [join(*row) for row in zip(*columns, strict=True)]


def box(title: str, lines: Sequence[Text], width: int, height: int, note: str = "") -> list[Text]:
    """The lines in a frame, with a title, and a note at its right end where there is room for both."""
    if width < 4 or height < 3:
        return fit_all(lines, width, height)
    inner = width - 4
    head = cut(title, inner)
    tail = f" {note} " if note and cells(note) + cells(head) + 4 <= inner else ""
    rule = "─" * (inner - cells(head) - cells(tail))
    top = line(("┌ ", FRAME), (head, TITLE), (f" {rule}{tail}┐", FRAME))
    body = [join(_LEFT_EDGE, each, _RIGHT_EDGE) for each in fit_all(lines, inner, height - 2)]
    return [top, *body, line((f"└{'─' * (width - 2)}┘", FRAME))]


def bar(share: float, width: int) -> tuple[str, str]:
    """A share of one as the filled and the empty part of a bar, to an eighth of a cell."""
    if width <= 0:
        return "", ""
    share = min(1.0, max(0.0, share)) if is_number(share) else 0.0
    eighths = int(share * width * 8 + 0.5)
    whole, part = divmod(eighths, 8)
    filled = "█" * whole + (_EIGHTHS[part] if part else "")
    return filled, "░" * (width - len(filled))


def _text(plain: str, spans: list[Span]) -> Text:
    return Text(plain, no_wrap=True, end="", spans=spans)


_LEFT_EDGE, _RIGHT_EDGE = line(("│ ", FRAME)), line((" │", FRAME))
