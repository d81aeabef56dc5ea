"""Rewards by a function of the user's own, named as ``module:name`` or ``file.py:name``."""

from __future__ import annotations

import logging
import sys
from collections import defaultdict
from collections.abc import Mapping
from itertools import islice
from math import floor, isfinite, isnan
from typing import TYPE_CHECKING, Any, Literal, NamedTuple

import torch
from jaxtyping import Bool, Float32
from torch import Tensor

from dagrl.data.columns import Objects
from dagrl.data.metrics import Mean, Metrics, Sum
from dagrl.data.rows import rows_in_use
from dagrl.errors import NodeError
from dagrl.graph import node
from dagrl.graph.checks import CallView
from dagrl.graph.progress import Progress
from dagrl.graph.roles import Message
from dagrl.rewards.errors import RewardProcessError, RewardReferenceError
from dagrl.rewards.reference import find_function
from dagrl.rewards.scores import SCORE, RowFailure, Scores
from dagrl.rewards.shapes import COLUMNS, Columns, Parameters, detect_shape, field_names, needed_fields, shape_fault

if TYPE_CHECKING:
    from dagrl.rewards.loading import Loaded, Source
    from dagrl.rewards.pool import RewardPool

_LOG = logging.getLogger(__name__)
_SHOWN, _MAX_KEYS = 3, 32
_NUMBERS, _LARGEST = (float, bool, int), sys.float_info.max
#: Rows of the data that are searched for a field; the first has it as a rule.
_ROWS_LOOKED_AT = 1000
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
        parameters = find_function(options["function"]).parameters
    except RewardReferenceError as error:
        return [*refusals, f"`function`: {error}"]
    fault = None if parameters is None else _shape_fault(call, parameters)
    return [*refusals, f"`function` is {options['function']!r}: {fault}"] if fault else refusals


def _loadable(call: CallView) -> list[str]:
    """Load the function where it will run, which can take its time and fail in every way that code can."""
    fault = _load_fault(call)
    if fault is None:
        return []
    _close_pools()
    return [f"`function` is {call.options['function']!r}: {fault}"]


def load_problem(function: str, processes: int, load_time_limit: float) -> str | None:
    """Why a function of dagrl's own cannot be loaded where it will run."""
    try:
        _load(function, processes, load_time_limit)
    except (RewardProcessError, RewardReferenceError) as error:
        _close_pools()
        return str(error)
    return None


def _close_pools() -> None:
    """There will be no run that ends and closes them."""
    from dagrl.rewards.pool import close_pools

    close_pools()


def _load_fault(call: CallView) -> str | None:
    options = call.options
    try:
        pool, source, loaded = _load(options["function"], options["processes"], options["load_time_limit"])
    except (RewardProcessError, RewardReferenceError) as error:
        return str(error)
    pool.fields[source] = _data_fields(call, loaded.parameters) or frozenset()
    return _shape_fault(call, loaded.parameters)


def _shape_fault(call: CallView, parameters: Parameters) -> str | None:
    choice: _Choice = call.options["shape"]
    shape = detect_shape(parameters) if choice == "auto" else choice
    fields = _data_fields(call, parameters) if shape == "trl" else None
    return shape_fault(parameters, shape, _present(call), fields)


def _present(call: CallView) -> frozenset[str]:
    return frozenset(COLUMNS) & call.columns()


def _data_fields(call: CallView, parameters: Parameters) -> frozenset[str] | None:
    """The names of the fields of the data rows, as far as it takes to find those that a function of TRL's shape needs.

    None where the rows come from elsewhere than a source of data.
    """
    sources = [one.options for one in call.upstream() if {"data", "split"} <= set(one.options)]
    if "row_fields" not in call.columns() or not sources:
        return None
    needed = needed_fields(parameters, _present(call))
    names: set[str] = set()
    for options in sources:
        rows = rows_in_use(options["data"], options["split"], options.get("test_share", 0.0))
        for number in range(min(len(rows), _ROWS_LOOKED_AT)):
            names.update(rows[number].fields)
            if needed <= names:
                break
    return frozenset(names)


@node(check=_callable, before_run=_loadable, examples={"function": "dagrl.rewards.example:same_text"})
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
        allowed = floor(max_failed_share * num_rows + 1e-9)  # 0.29 of 100 rows are 29
        scores = score_rows(
            function, shape, columns, (time_limit, load_time_limit, max(allowed, _SHOWN - 1)), processes
        )
        _tell(function, scores, num_rows, columns, allowed, max_failed_share)
    rewards = torch.tensor(scores.values, dtype=torch.float32)
    details = [scores.details.get(row) for row in range(num_rows)]
    return FunctionRewards(rewards, details), _metrics(scores)


def score_rows(
    function: str, shape: _Choice, columns: Columns, limits: tuple[float, float, int], processes: int
) -> Scores:
    """The scores of all rows by a function; ``limits`` are seconds for a row and for loading, and failures allowed.

    Raises:
        NodeError: when the function cannot be used.
    """
    from dagrl.rewards.scoring import Limits, Scoring

    try:
        pool, source, loaded = _load(function, processes, limits[1])
        chosen = detect_shape(loaded.parameters) if shape == "auto" else shape
        fault = shape_fault(loaded.parameters, chosen, frozenset(columns), _seen_fields(pool, source, loaded, columns))
        if fault is not None or chosen is None:
            raise RewardProcessError(f"{fault}")
        progress = Progress(len(columns["response_text"]))
        return Scoring(pool, source, chosen, loaded, columns, Limits(*limits), progress.advance).run()
    except (RewardProcessError, RewardReferenceError) as error:
        raise NodeError(f"the reward function `{function}` cannot be used: {error}") from error


def _seen_fields(pool: RewardPool, source: Source, loaded: Loaded, columns: Columns) -> frozenset[str]:
    """The names that rows of the data have, in this step or before: not every row needs to have them all."""
    seen = pool.fields.get(source, frozenset())
    if "row_fields" in columns and not needed_fields(loaded.parameters, frozenset(columns)) <= seen:
        pool.fields[source] = seen = seen | field_names(columns["row_fields"])
    return seen


def _load(function: str, processes: int, load_limit: float) -> tuple[RewardPool, Source, Loaded]:
    from dagrl.rewards.pool import open_pool
    from dagrl.rewards.scoring import load_function

    pool = open_pool(processes)
    source = pool.find(function)
    return pool, source, load_function(pool, source, load_limit)


def _tell(function: str, scores: Scores, num_rows: int, columns: Columns, allowed: int, share: float) -> None:
    """Log a sample of the failures and of what was printed, or end the run with it."""
    if scores.printed:
        _LOG.info("reward function `%s` printed: %s", function, scores.printed)
    for note in scores.notes:
        _LOG.warning("reward function `%s`: %s", function, note)
    if not scores.failures:
        return
    shown = "".join(_sample(failure, columns) for failure in scores.failures[:_SHOWN])
    what, limit = f"the reward function `{function}` failed on", f"max_failed_share={share:g} allows {allowed}"
    failed, done = len(scores.failures), _num_done(scores)
    if failed <= allowed:
        _LOG.warning(
            "%s %d of the %d rows of this step, which are left out (%s):%s", what, failed, num_rows, limit, shown
        )
    elif done == num_rows:
        raise NodeError(f"{what} {failed} of the {num_rows} rows of this step, and {limit}. Some of them:{shown}")
    else:
        raise NodeError(
            f"{what} {failed} of the first {done} rows to be scored of the {num_rows} of this step, and {limit}; the "
            f"rest was not scored. Some of them:{shown}"
        )


def _num_done(scores: Scores) -> int:
    """How many rows have a score, none by choice, or have failed."""
    return sum(not isnan(value) for value in scores.values) + len(scores.failures) + len(scores.declined)


def _sample(failure: RowFailure, columns: Columns) -> str:
    text = str(columns["response_text"][failure.row])
    lines = [f"row {failure.row}: {failure.error}"]
    lines += [f"  at       {failure.at}"] if failure.at else []
    lines += [f"  response {text[:120]!r}{'...' if len(text) > 120 else ''}"]
    lines += [f"  printed  {failure.printed[:200]!r}"] if failure.printed else []
    return "".join(f"\n  {line}" for line in lines)


def _metrics(scores: Scores) -> Metrics:
    """Counts of unscored rows, and the mean of each number beside the score in dict results."""
    numbers: defaultdict[str, list[float]] = defaultdict(list)
    for details in scores.details.values():
        for key, value in details.items():
            # Neither NaN, infinity nor an integer beyond every float is within.
            if type(value) in _NUMBERS and key != SCORE and -_LARGEST <= value <= _LARGEST:
                numbers[key].append(value)
    shown = islice(numbers.items(), _MAX_KEYS)
    named = {f"reward/score/{key}": Mean(float(sum(values)), float(len(values))) for key, values in shown}
    return Metrics(
        {
            "reward/failed_rows": Sum(float(len(scores.failures))),
            "reward/declined_rows": Sum(float(len(scores.declined))),
            **named,
        }
    )
