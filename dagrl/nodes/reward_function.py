"""Rewards by a function of the user's own, named as ``module:name`` or ``file.py:name``."""

from __future__ import annotations

import logging
from collections import Counter
from collections.abc import Mapping
from itertools import islice
from math import isfinite, isnan
from typing import Any, Literal, NamedTuple

import torch
from jaxtyping import Bool, Float32
from torch import Tensor

from dagrl.data.columns import Objects
from dagrl.data.metrics import Mean, Metrics, Sum
from dagrl.errors import NodeError
from dagrl.graph import node
from dagrl.graph.checks import CallView
from dagrl.graph.roles import Message
from dagrl.rewards.errors import RewardProcessError, RewardReferenceError
from dagrl.rewards.reference import Found, find_function
from dagrl.rewards.scores import SCORE, RowFailure, Scores
from dagrl.rewards.shapes import COLUMNS, Columns, detect_shape, shape_fault

_LOG = logging.getLogger(__name__)
_SHOWN, _MAX_KEYS = 3, 32
_Choice = Literal["auto", "columns", "verl", "trl"]


class FunctionRewards(NamedTuple):
    """What ``reward_function`` writes."""

    rewards: Float32[Tensor, " B"]
    reward_details: Objects[dict[str, Any] | None] | None


def _callable(call: CallView) -> list[str]:
    options = call.options
    limits = [
        (name, f"a number of seconds above 0, got {options[name]}")
        for name in ("time_limit", "load_time_limit")
        if not (isfinite(options[name]) and options[name] > 0)
    ]
    if not 0 <= options["max_failed_share"] <= 1:
        limits.append(("max_failed_share", f"a share from 0 to 1, got {options['max_failed_share']}"))
    if options["processes"] < 0:
        limits.append(("processes", f"a number of processes, or 0 for one each core, got {options['processes']}"))
    refusals = [f"`{name}` is {wanted}" for name, wanted in limits]
    try:
        found = find_function(options["function"])
    except RewardReferenceError as error:
        return [*refusals, f"`function`: {error}"]
    fault = _shape_fault(found, options["shape"], frozenset(COLUMNS) & call.columns())
    return [*refusals, f"`function` is {options['function']!r}: {fault}"] if fault else refusals


def _shape_fault(found: Found, shape: _Choice, present: frozenset[str]) -> str | None:
    if found.parameters is None:
        return None
    return shape_fault(found.parameters, detect_shape(found.parameters) if shape == "auto" else shape, present)


@node(check=_callable, examples={"function": "dagrl.rewards.example:same_text"})
def reward_function(
    messages: Objects[list[Message]],
    response_text: Objects[str],
    answers: Objects[str] | None = None,
    data_source: Objects[str] | None = None,
    row_fields: Objects[Mapping[str, Any]] | None = None,
    truncated: Bool[Tensor, " B"] | None = None,
    *,
    function: str,
    shape: _Choice = "auto",
    time_limit: float = 10.0,
    load_time_limit: float = 300.0,
    processes: int = 0,
    max_failed_share: float = 0.1,
) -> tuple[FunctionRewards, Metrics]:
    """Rewards by a function of one's own, called in processes that are killed when a row takes too long.

    Three shapes are told apart by parameter names: columns as lists (``f(*, response_text, answers)``), verl's
    ``compute_score`` on one row, TRL's ``f(prompts, completions, **columns)``; each may be async. A row may be
    scored more than once, and a function on lists gets some of the rows at a time.

    A row whose call raises, returns no finite number, takes longer than ``time_limit`` seconds or ends its process is
    unscorable (NaN) and counted as ``reward/failed_rows``; ``reward/declined_rows`` counts None of TRL's shape. A
    dict's ``score`` is the reward; it becomes ``reward_details``, and the mean of each other number in it
    ``reward/score/KEY``. ``processes=0`` is one for each core, at most 8.

    Raises:
        NodeError: when the function cannot be loaded, or more than ``max_failed_share`` of the rows fail.
    """
    flags = None if truncated is None else truncated.tolist()
    given = (messages, response_text, answers, data_source, row_fields, flags)
    names = ("messages", "response_text", "answers", "data_source", "row_fields", "truncated")
    columns: Columns = {name: values for name, values in zip(names, given, strict=True) if values is not None}  # pyright: ignore[reportAssignmentType]
    num_rows = len(response_text)
    if num_rows == 0:
        scores = Scores.unscored(0)
    else:
        allowed = int(max_failed_share * num_rows)
        scores = _score(function, shape, columns, (time_limit, load_time_limit, max(allowed, _SHOWN - 1)), processes)
        _tell(function, scores, num_rows, columns, ends=len(scores.failures) > allowed, share=max_failed_share)
    rewards = torch.tensor(scores.values, dtype=torch.float32)
    details = [scores.details.get(row) for row in range(num_rows)]
    return FunctionRewards(rewards, details), _metrics(scores)


def _score(function: str, shape: _Choice, columns: Columns, limits: tuple[float, float, int], processes: int) -> Scores:
    from dagrl.rewards.pool import open_pool  # loads pebble, which planning needs not
    from dagrl.rewards.scoring import Limits, Scoring, load_function

    try:
        source = find_function(function).source
        pool = open_pool(processes)
        loaded = load_function(pool, source, limits[1])
        chosen = detect_shape(loaded.parameters) if shape == "auto" else shape
        fault = shape_fault(loaded.parameters, chosen, frozenset(columns))
        if fault is not None or chosen is None:
            raise RewardProcessError(f"{fault}")
        return Scoring(pool, source, chosen, loaded, columns, Limits(*limits)).run()
    except (RewardProcessError, RewardReferenceError) as error:
        raise NodeError(f"the reward function `{function}` cannot be used: {error}") from error


def _tell(function: str, scores: Scores, num_rows: int, columns: Columns, *, ends: bool, share: float) -> None:
    """Log a sample of the failures and of what was printed, or end the run with it."""
    if scores.printed:
        _LOG.info("reward function `%s` printed: %s", function, scores.printed)
    for note in scores.notes:
        _LOG.warning("reward function `%s`: %s", function, note)
    if not scores.failures:
        return
    shown = "".join(_sample(failure, columns) for failure in scores.failures[:_SHOWN])
    what = f"the reward function `{function}` failed on {len(scores.failures)} of {num_rows} rows"
    if ends:
        raise NodeError(f"{what}, more than max_failed_share={share:g} allows. Some of them:{shown}")
    _LOG.warning("%s, which are left out:%s", what, shown)


def _sample(failure: RowFailure, columns: Columns) -> str:
    text = str(columns["response_text"][failure.row])
    lines = [f"row {failure.row}: {failure.error}"]
    lines += [f"  at       {failure.at}"] if failure.at else []
    lines += [f"  response {text[:120]!r}{'...' if len(text) > 120 else ''}"]
    lines += [f"  printed  {failure.printed[:200]!r}"] if failure.printed else []
    return "".join(f"\n  {line}" for line in lines)


def _metrics(scores: Scores) -> Metrics:
    """Counts of unscored rows, and the mean of each number beside the score in dict results."""
    sums: dict[str, float] = {}
    counts: Counter[str] = Counter()
    for details in scores.details.values():
        for key, value in details.items():
            if key != SCORE and isinstance(value, int | float) and not isnan(value):
                sums[key] = sums.get(key, 0.0) + value
                counts[key] += 1
    named = {f"reward/score/{key}": Mean(total, float(counts[key])) for key, total in islice(sums.items(), _MAX_KEYS)}
    return Metrics(
        {
            "reward/failed_rows": Sum(float(len(scores.failures))),
            "reward/declined_rows": Sum(float(len(scores.declined))),
            **named,
        }
    )
