"""The three shapes of reward function, told apart by parameter names, and the arguments each gets.

======== ============================================================== ======================================
columns  ``f(*, response_text, answers, ...)``                          lists; returns one result for each row
verl     ``f(data_source, solution_str, ground_truth, extra_info)``     one row; returns a number or a dict
trl      ``f(prompts, completions, **columns)``                         lists; returns one number for each row
======== ============================================================== ======================================
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Literal

Shape = Literal["columns", "verl", "trl"]
Columns = Mapping[str, Sequence[Any]]

#: The columns that a function can be given, by our names.
COLUMNS = ("messages", "response_text", "answers", "data_source", "row_fields", "truncated")
#: What TRL's trainer knows under these names and a run here has not.
NOT_OFFERED = frozenset({"completion_ids"})
_VERL: tuple[str, ...] = ("data_source", "solution_str", "ground_truth", "extra_info")
_SIGNATURES = (
    "`f(*, response_text, answers)` on lists of columns, `compute_score(data_source, solution_str, ground_truth, "
    "extra_info=None)` on one row, or `f(prompts, completions, **columns)` on lists"
)


@dataclass(frozen=True)
class Parameters:
    """The parameters of a function that can be passed by name; ``takes_any``: it has ``**kwargs``."""

    names: tuple[str, ...]
    required: frozenset[str]
    takes_any: bool = False
    positional_only: bool = False


def detect_shape(parameters: Parameters) -> Shape | None:
    """The shape that the parameter names stand for."""
    names = set(parameters.names)
    if {"solution_str", "ground_truth"} & names:
        return "verl"
    if "completions" in names:
        return "trl"
    return "columns" if names & set(COLUMNS) or (parameters.takes_any and not parameters.required) else None


def shape_fault(parameters: Parameters, shape: Shape | None, present: frozenset[str]) -> str | None:
    """Why a function of these parameters cannot be called on the columns that are ``present``."""
    if parameters.positional_only:
        return "it has positional-only parameters; arguments are passed by name, so drop the `/`"
    if shape is None:
        shown = ", ".join(f"`{name}`" for name in parameters.names) or "none"
        return f"its parameters ({shown}) fit no shape of reward function: {_SIGNATURES}"
    missing = sorted(parameters.required - _offered(shape, present))
    if "row_fields" in present and shape == "trl":
        missing = [name for name in missing if name in NOT_OFFERED]
    if not missing:
        return None
    named = ", ".join(f"`{name}`" for name in missing)
    offered = ", ".join(sorted(_offered(shape, present)))
    return f"it requires {named}, which a function of shape '{shape}' is not given here; it can take {offered}"


def _offered(shape: Shape, present: frozenset[str]) -> set[str]:
    if shape == "columns":
        return set(present)
    if shape == "verl":
        without = {"data_source"} - present
        without |= set() if present & {"answers", "row_fields"} else {"ground_truth"}
        return set(_VERL) - without
    return (
        {"prompts", "completions"}
        | ({"answers", "answer"} if "answers" in present else set())
        | ({"data_source"} & present)
    )


def wanted_columns(parameters: Parameters, shape: Shape) -> frozenset[str]:
    """The columns to send to a function."""
    if shape == "verl":
        return frozenset(COLUMNS) - {"messages", "truncated"}
    if shape == "trl":
        return frozenset(COLUMNS) - {"truncated"}
    return frozenset(name for name in COLUMNS if parameters.takes_any or name in parameters.names)


def row_arguments(columns: Columns, row: int) -> dict[str, Any]:
    """What verl's ``compute_score`` is offered for a row; a row of verl's own holds the ground truth and extra_info."""
    fields: Mapping[str, Any] = columns["row_fields"][row] if "row_fields" in columns else {}
    truth = _own_truth(fields) if "reward_model" in fields else None
    if truth is None and "answers" in columns:
        truth = columns["answers"][row]
    return {
        "data_source": columns["data_source"][row] if "data_source" in columns else None,
        "solution_str": columns["response_text"][row],
        "ground_truth": truth,
        "extra_info": fields.get("extra_info") or {},
    }


def _own_truth(fields: Mapping[str, Any]) -> Any:
    judged = fields["reward_model"]
    return judged["ground_truth"] if isinstance(judged, Mapping) and "ground_truth" in judged else None


def list_arguments(parameters: Parameters, shape: Shape, columns: Columns, rows: slice) -> dict[str, Any]:
    """What a function on lists gets for some rows."""
    part = {name: list(values[rows]) for name, values in columns.items()}
    offered = part if shape == "columns" else _trl_arguments(part)
    return taken(parameters, offered)


def taken(parameters: Parameters, offered: dict[str, Any]) -> dict[str, Any]:
    """Of the arguments that are offered those that the function takes."""
    return offered if parameters.takes_any else {name: offered[name] for name in parameters.names if name in offered}


def _trl_arguments(columns: Mapping[str, list[Any]]) -> dict[str, Any]:
    """TRL's arguments: text where the data's prompt is text, else messages; each field of the data rows as a list."""
    fields: list[Mapping[str, Any]] = columns.get("row_fields", [])
    prompts = [row.get("prompt") for row in fields] if fields else [None] * len(columns["response_text"])
    messages = columns.get("messages", prompts)
    prompts = [own if own is not None else chat for own, chat in zip(prompts, messages, strict=True)]
    answers = {name: columns["answers"] for name in ("answer", "answers") if "answers" in columns}
    sources = {"data_source": columns["data_source"]} if "data_source" in columns else {}
    names = dict.fromkeys(name for row in fields for name in row if name not in {"prompt", "completion"} | NOT_OFFERED)
    return {
        **answers,
        **sources,
        **{name: [row.get(name) for row in fields] for name in names},
        "prompts": prompts,
        "completions": [
            text if isinstance(prompt, str) else [{"role": "assistant", "content": text}]
            for text, prompt in zip(columns["response_text"], prompts, strict=True)
        ],
    }
