"""Text made fit for one line of a terminal, and measured in cells rather than characters."""

import unicodedata
from functools import lru_cache

from rich.cells import cell_len, get_character_cell_size

CUT = "…"
_UNKNOWN = "�"
#: More characters than a line of any terminal shows; what comes after is never looked at.
_MOST_CHARACTERS = 4096
#: Marks kept on one character: enough for real writing, too few to pile up over other lines.
_MOST_MARKS = 3
_CONTROL_PICTURES = 0x2400
_SKIN_TONES = range(0x1F3FB, 0x1F400)


def safe(text: str) -> str:
    """The text as one line that a terminal shows and never obeys; of very long ones only the start.

    Line breaks and control characters become visible signs, characters that only steer how others are shown (direction,
    joining, variants) are dropped, so each character left has a width of its own. Safe text stays as it is.
    """
    if len(text) > _MOST_CHARACTERS:
        return safe(text[:_MOST_CHARACTERS]) + CUT
    return text if text.isascii() and text.isprintable() else _safe(text)


def safe_in_full(text: str) -> str:
    """Like `safe`, however long the text is."""
    starts = range(0, len(text), _MOST_CHARACTERS)
    return "".join(safe(text[start : start + _MOST_CHARACTERS]) for start in starts)


def safe_lines(text: str, most: int) -> list[str]:
    """The first lines of the text that are not empty, each made safe."""
    start = text[: _MOST_CHARACTERS * max(1, most)]
    lines = [safe(line.rstrip()) for line in start.splitlines() if line.strip()]
    return lines[:most]


def cells(text: str) -> int:
    """How many cells of a terminal safe text takes."""
    return len(text) if text.isascii() else cell_len(text)


def cut(text: str, width: int) -> str:
    """Safe text in at most ``width`` cells, with an ellipsis where something is cut off."""
    if width <= 0:
        return ""
    if text.isascii():
        return text if len(text) <= width else text[: width - 1] + CUT
    return _cut(text[: (_MOST_MARKS + 1) * (width + 1)], width)


def pad(text: str, width: int) -> str:
    """Safe text in exactly ``width`` cells, cut or filled with spaces on the right."""
    shown = cut(text, width)
    return shown + " " * (width - cells(shown))


def pad_left(text: str, width: int) -> str:
    """Safe text in exactly ``width`` cells, cut or filled with spaces on the left."""
    shown = cut(text, width)
    return " " * (width - cells(shown)) + shown


def folded(text: str, width: int, most: int) -> list[str]:
    """Safe text as up to ``most`` lines of at most ``width`` cells, an ellipsis where that is too little for it."""
    lines: list[str] = []
    rest = text
    while len(lines) < most - 1 and cells(rest) > width:
        head = _beginning(rest, width)
        if not head:
            break
        lines.append(head.rstrip())
        rest = rest[len(head) :].lstrip()
    return [*lines, cut(rest, width)] if rest or not lines else lines


def _beginning(text: str, width: int) -> str:
    """As much as fits, up to a space where there is one near the end."""
    used, end = 0, 0
    for character in text:
        used += get_character_cell_size(character)
        if used > width:
            break
        end += 1
    space = text.rfind(" ", 0, end + 1)
    return text[: space if space > end // 2 else end]


@lru_cache(2048)
def _safe(text: str) -> str:
    shown: list[str] = []
    marks = _MOST_MARKS  # a mark at the start has nothing to stand on
    for character in text:
        visible = character if character.isprintable() else _visible(character)
        if not visible or _only_steers(visible):
            continue
        marks = marks + 1 if get_character_cell_size(visible) == 0 else 0
        if marks <= _MOST_MARKS:
            shown.append(visible)
    return "".join(shown)


def _visible(character: str) -> str:
    """What stands for a character that is not to be printed; nothing for those without a look of their own."""
    code = ord(character)
    category = unicodedata.category(character)
    if character in "\n\u0085\u2028\u2029":
        return "↵"
    if character == "\t" or category == "Zs":
        return " "
    if code < 0x20:
        return "" if character == "\r" else chr(_CONTROL_PICTURES + code)
    return "" if category == "Cf" else _UNKNOWN


def _only_steers(character: str) -> bool:
    """Whether it changes how wide its neighbours are, which terminals do not agree on."""
    code = ord(character)
    return 0xFE00 <= code <= 0xFE0F or 0xE0100 <= code <= 0xE01EF or code in _SKIN_TONES


@lru_cache(4096)
def _cut(text: str, width: int) -> str:
    if cell_len(text) <= width:
        return text
    used = 0
    for index, character in enumerate(text):
        used += get_character_cell_size(character)
        if used > width - 1:
            return text[:index] + CUT
    return text
