"""The smallest reward function on columns, which also serves to check the node that calls it."""

from __future__ import annotations

from collections.abc import Sequence


def same_text(*, response_text: Sequence[str], answers: Sequence[str] | None = None) -> list[float]:
    """1 where the response is the answer, else 0."""
    expected = answers if answers is not None else [""] * len(response_text)
    return [float(text.strip() == str(answer).strip()) for text, answer in zip(response_text, expected, strict=True)]
