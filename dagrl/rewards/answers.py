"""The answer in a response, by the format that the prompt asked for."""

from __future__ import annotations

import re
from collections import deque
from typing import Literal

#: Where the answer is: the whole text, its last number, between the last `<answer>` tags, in the last `\\boxed{}`.
AnswerFormat = Literal["whole", "last_number", "tags", "boxed"]

_NUMBER = re.compile(r"-?(?:\d[\d,]*(?:\.\d+)?|\.\d+)")
_OPEN, _CLOSE, _BOXED = "<answer>", "</answer>", "\\boxed{"


def find_answer(text: str, answer_format: AnswerFormat) -> str | None:
    """The answer without surrounding white space; None where the response has none of that form.

    Numbers lose the commas between their digits. A minus right after a digit or letter is an operator: in ``3-4`` the
    last number is 4.
    """
    if answer_format == "whole":
        return text.strip() or None
    if answer_format == "last_number":
        return _last_number(text)
    return _in_tags(text) if answer_format == "tags" else _in_box(text)


def _last_number(text: str) -> str | None:
    numbers = deque(_NUMBER.finditer(text), maxlen=1)
    if not numbers:
        return None
    last = numbers[0]
    number = last.group().replace(",", "")
    is_operator = number.startswith("-") and last.start() > 0 and text[last.start() - 1].isalnum()
    return number[1:] if is_operator else number


def _in_tags(text: str) -> str | None:
    end = text.rfind(_CLOSE)
    start = text.rfind(_OPEN, 0, max(end, 0))
    return None if start < 0 else text[start + len(_OPEN) : end].strip() or None


def _in_box(text: str) -> str | None:
    """What is between the braces of the last box, inner braces paired; None where they do not close."""
    start = text.rfind(_BOXED)
    depth = 0
    for place in range(start + len(_BOXED) - 1, len(text)) if start >= 0 else ():
        depth += {"{": 1, "}": -1}.get(text[place], 0)
        if depth == 0:
            return text[start + len(_BOXED) : place].strip() or None
    return None
