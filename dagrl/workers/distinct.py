"""Work on equal inputs is done once: many rows of a batch share a prompt, and some a response."""

from __future__ import annotations

from collections.abc import Callable, Hashable, Sequence
from typing import TypeVar

Input = TypeVar("Input")
Result = TypeVar("Result")


def each_once(
    inputs: Sequence[Input], work: Callable[[list[Input]], Sequence[Result]], *, key: Callable[[Input], Hashable] = repr
) -> list[Result]:
    """The result of ``work`` for each input; it is called once, with the distinct ones in order of appearance.

    Inputs are equal where ``key`` gives the same. ``work`` is called for no input too: ranks may have to be in step.
    """
    keys = [key(each) for each in inputs]
    distinct = dict(zip(keys, inputs, strict=True))
    results = dict(zip(distinct, work(list(distinct.values())), strict=True))
    return [results[each] for each in keys]
