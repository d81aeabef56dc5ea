"""Whether two mathematical expressions are equal, by math-verify: called in reward processes.

math-verify stops itself by a signal, which threads do not allow and which a process with its own limit does not need.
"""

from __future__ import annotations

import logging

from math_verify import parse, verify

logging.getLogger("math_verify").setLevel(logging.ERROR)  # it warns that its own limit is off


def compute_score(solution_str: str, ground_truth: str) -> dict[str, float]:
    """``score`` 1 where the response's expression equals the answer's; whether each could be ``parsed``."""
    gold = parse(_as_math(ground_truth), parsing_timeout=None)  # pyright: ignore[reportArgumentType]
    found = parse(solution_str, parsing_timeout=None) if gold else []  # pyright: ignore[reportArgumentType]
    same = bool(gold and found) and verify(gold, found, timeout_seconds=None)
    return {"score": float(same), "parsed": float(bool(found)), "answer_parsed": float(bool(gold))}


def _as_math(answer: str) -> str:
    """An answer in LaTeX without signs around it is only read as such between dollar signs."""
    return f"${answer}$" if "\\" in answer and "$" not in answer and "\\boxed" not in answer else answer
