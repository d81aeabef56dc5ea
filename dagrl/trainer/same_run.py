"""Whether a run that is resumed is still the same: settings, data and pipelines, by name of what differs."""

from __future__ import annotations

import logging
from collections.abc import Mapping, Sequence
from dataclasses import MISSING, fields
from typing import Any

from dagrl.errors import Problem, ResumeError
from dagrl.graph.contract import REQUIRED
from dagrl.graph.pipeline import Call
from dagrl.graph.specs import ModelSpec
from dagrl.storage.checkpoints import Checkpoint
from dagrl.storage.json_lines import plain
from dagrl.workers.deployment import Planned

_LOG = logging.getLogger(__name__)
#: Where a run is done and from which file it is read is no part of what it computes.
_NOT_COMPARED = frozenset({"file", "executor"})
#: Knobs that change no number: on how many processes, and how many rows of a mini-batch at once.
_FREE = frozenset({"config.workers", "config.micro_batch_size"})
_FREE_OPTION = ".options.micro_batch_size"
_STEPS = frozenset({"steps", "config.steps"})
_PLACES = frozenset({"role", "at", "parallel"})


def describe_run(
    planned: Sequence[Planned], *, seed: int, steps: int, config: Mapping[str, Any], rows: Mapping[str, int]
) -> dict[str, Any]:
    """What decides the numbers of a run, as JSON: its settings, the rows of its data, its calls and models."""
    settings = {key: value for key, value in config.items() if key not in _NOT_COMPARED}
    built = {
        "pipelines": {one.pipeline.name: _pipeline(one) for one in planned},
        "groups": {
            call.group.name: _model(call.group.model)
            for one in planned
            for call in (one.pipeline.call(op.call) for op in one.plan.runs)
            if call.group is not None
        },
    }
    return plain({"settings": {"seed": seed, "steps": steps, **settings}, "rows": dict(rows), "built": built})


def check_same_run(checkpoint: Checkpoint, now: Mapping[str, Any], planned: Sequence[Planned]) -> None:
    """See that a checkpoint can be gone on from; another number of steps is allowed, and warned of.

    An option that the checkpoint does not know, because there was none when it was made, had its default. A setting
    that only one of the two has is not compared: what it does shows in the pipelines.

    Raises:
        ResumeError: naming everything that has changed.
    """
    before = _completed(checkpoint.state["run"], {"built": _defaults(planned)})
    steps_before, steps = before["settings"]["steps"], now["settings"]["steps"]
    if checkpoint.step > steps:
        what = f"the newest checkpoint, `{checkpoint.url}`, is of step {checkpoint.step}, and steps={steps}."
        raise ResumeError([Problem(what, fix="ask for more steps, or give a new `--out`")])
    for part in ("settings", "rows", "built"):
        sides = (before[part], now[part]) if part != "settings" else _in_both(before[part], now[part])
        problems = [_problem(part, name, *values) for name, values in _differing(*sides).items()]
        if problems:
            raise ResumeError(problems, f"`{checkpoint.url}`")
    if steps_before != steps:
        _LOG.warning(
            "`steps` was %d and is %d: from step %d on, the learning rates are those of a schedule over %d steps, so "
            "this is not the run that %d steps from the start would have been",
            steps_before, steps, checkpoint.step + 1, steps, steps,
        )  # fmt: skip


def _pipeline(planned: Planned) -> dict[str, Any]:
    calls = {
        op.call: {
            "node": op.node,
            "group": op.group,
            "options": dict(op.options),
            "state": repr(planned.pipeline.call(op.call).state),
            "reads": {read.column: f"{read.call}.{read.source}" for read in op.reads},
            "filters": op.filters,
        }
        for op in planned.plan.runs
    }
    loops = {op.id: {"groups": op.groups, "max_rounds": op.max_rounds} for op in planned.plan.loops}
    return {"every": planned.pipeline.every, "calls": calls, **({"loops": loops} if loops else {})}


def _model(spec: ModelSpec) -> dict[str, Any]:
    return {field.name: getattr(spec, field.name) for field in fields(spec) if field.name not in _PLACES}


def _defaults(planned: Sequence[Planned]) -> dict[str, Any]:
    """The defaults of all options of calls and models, where `describe_run` has their values.

    A checkpoint that says nothing of the states that nodes began with is taken to have begun with these.
    """
    known = [field for field in fields(ModelSpec) if field.name not in _PLACES and field.default is not MISSING]
    model = {field.name: field.default for field in known}
    calls = {
        one.pipeline.name: {"calls": {call.name: _known_of(call) for call in one.pipeline.calls}} for one in planned
    }
    groups = {call.group.name for one in planned for call in one.pipeline.calls if call.group is not None}
    return plain({"pipelines": calls, "groups": dict.fromkeys(groups, model)})


def _known_of(call: Call) -> dict[str, Any]:
    return {"options": _option_defaults(call), "state": repr(call.state)}


def _option_defaults(call: Call) -> dict[str, str]:
    return {option.name: repr(option.default) for option in call.contract.options if option.default is not REQUIRED}


def _completed(known: Mapping[str, Any], defaults: Mapping[str, Any]) -> dict[str, Any]:
    """What is known, with the default of each leaf that its own mapping lacks."""
    lacking = {key: value for key, value in defaults.items() if key not in known and not isinstance(value, Mapping)}
    inner = {
        key: _completed(value, defaults[key]) if isinstance(value, Mapping) and key in defaults else value
        for key, value in known.items()
    }
    return {**inner, **lacking}


def _in_both(one: Mapping[str, Any], other: Mapping[str, Any]) -> tuple[dict[str, Any], dict[str, Any]]:
    """The two without what only one of them has, inside them too."""
    kept: tuple[dict[str, Any], dict[str, Any]] = ({}, {})
    for key in (key for key in one if key in other):
        values = (one[key], other[key])
        if all(isinstance(value, Mapping) for value in values):
            values = _in_both(*values)
        kept[0][key], kept[1][key] = values
    return kept


def _differing(before: Any, now: Any, name: str = "") -> dict[str, tuple[Any, Any]]:
    """The dotted names of all leaves that differ, each with the two values; steps and free knobs aside."""
    if name in _STEPS | _FREE or name.endswith(_FREE_OPTION) or before == now:
        return {}
    if not isinstance(before, Mapping) or not isinstance(now, Mapping):
        return {name: (before, now)}
    found: dict[str, tuple[Any, Any]] = {}
    for key in dict.fromkeys([*before, *now]):
        found |= _differing(before.get(key, "nothing"), now.get(key, "nothing"), f"{name}.{key}" if name else key)
    return found


def _problem(part: str, name: str, before: Any, now: Any) -> Problem:
    shown = name.removeprefix("config.")
    match part:
        case "rows":
            what = f"the data of `{shown}` had {before} rows and has {now}."
            return Problem(what, fix="give the data that the run began with, or a new `--out`")
        case "built":
            what = f"the pipeline file has changed: `{shown}` was {_short(before)} and is {_short(now)}."
            return Problem(what, fix="undo the change, or give a new `--out`")
        case _:
            what = f"`{shown}` was {_short(before)} and is {_short(now)}."
            return Problem(what, fix=f"set `{shown}` as it was, or give a new `--out`")


def _short(value: Any) -> str:
    text = str(value) if not isinstance(value, str) else value
    return f"`{text}`" if len(text) <= 80 else f"`{text[:77]}...`"
