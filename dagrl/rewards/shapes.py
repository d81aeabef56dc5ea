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
#: Names of a data row's fields that TRL's trainer does not hand on, or that are arguments of another kind.
_NO_FIELDS = frozenset({"prompt", "completion", "prompts", "completions"}) | NOT_OFFERED
#: Names by which a function of TRL's shape may ask for our column of answers.
_ANSWERS = ("answer", "answers")
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
    #: It has ``*args`` as well, as what a decorator without ``functools.wraps`` returns.
    takes_many: bool = False


def detect_shape(parameters: Parameters) -> Shape | None:
    """The shape that the parameter names stand for."""
    names = set(parameters.names)
    if {"solution_str", "ground_truth"} & names:
        return "verl"
    if "completions" in names:
        return "trl"
    takes_all = parameters.takes_any and not parameters.required and not parameters.takes_many
    return "columns" if names & set(COLUMNS) or takes_all else None


def shape_fault(
    parameters: Parameters, shape: Shape | None, present: frozenset[str], fields: frozenset[str] | None = None
) -> str | None:
    """Why a function of these parameters cannot be called on the columns that are ``present``.

    ``fields`` are the names that the data rows have, None while they are not known.
    """
    if parameters.positional_only:
        return "it has positional-only parameters; arguments are passed by name, so drop the `/`"
    if shape is None:
        return _no_shape(parameters)
    offered = _offered(shape, present) | (set(fields or ()) - NOT_OFFERED if shape == "trl" else set())
    missing = sorted(parameters.required - offered)
    if fields is None and "row_fields" in present and shape == "trl":
        missing = [name for name in missing if name in NOT_OFFERED]
    if not missing:
        return None
    named = ", ".join(f"`{name}`" for name in missing)
    shown = ", ".join(f"`{name}`" for name in sorted(offered))
    return f"it requires {named}, which a function of shape '{shape}' is not given here; it can take {shown}"


def needed_fields(parameters: Parameters, present: frozenset[str]) -> frozenset[str]:
    """The fields of data rows that a function of TRL's shape cannot do without, beside what the columns give."""
    return parameters.required - _offered("trl", present) - NOT_OFFERED


def _no_shape(parameters: Parameters) -> str:
    shown = ", ".join(f"`{name}`" for name in parameters.names)
    if parameters.takes_many and parameters.takes_any:
        seen = ", ".join([*parameters.names, "*args", "**kwargs"])
        return (
            f"its signature is `({seen})`, which does not tell its shape; a decorator that hides the signature "
            "shows it when it uses `functools.wraps`, or say the shape: `shape='verl'`, `'trl'` or `'columns'`"
        )
    return f"its parameters ({shown or 'none'}) fit no shape of reward function: {_SIGNATURES}"


def _offered(shape: Shape, present: frozenset[str]) -> set[str]:
    if shape == "columns":
        return set(present)
    if shape == "verl":
        without = {"data_source"} - present
        without |= set() if present & {"answers", "row_fields"} else {"ground_truth"}
        return set(_VERL) - without
    answers = set(_ANSWERS) if "answers" in present else set[str]()
    return {"prompts", "completions"} | answers | ({"data_source"} & present)


def list_arguments(parameters: Parameters, shape: Shape, columns: Columns) -> dict[str, list[Any]]:
    """The arguments that the function takes, each as a list of one value for each row.

    A function on one row gets the values of its row. What no data row has is None, so that a function gets the same
    arguments whichever rows it is called on.
    """
    if shape == "columns":
        offered = {name: list(values) for name, values in columns.items()}
    else:
        offered = _verl_arguments(columns) if shape == "verl" else _trl_arguments(parameters, columns)
    return offered if parameters.takes_any else {name: offered[name] for name in parameters.names if name in offered}


def _verl_arguments(columns: Columns) -> dict[str, list[Any]]:
    """What verl's ``compute_score`` is offered; a row of verl's own holds the ground truth and extra_info."""
    num_rows = len(columns["response_text"])
    fields: Sequence[Mapping[str, Any]] = columns.get("row_fields", [{}] * num_rows)
    answers = columns.get("answers", [None] * num_rows)
    return {
        "data_source": list(columns.get("data_source", [None] * num_rows)),
        "solution_str": list(columns["response_text"]),
        "ground_truth": [_truth(row, answer) for row, answer in zip(fields, answers, strict=True)],
        "extra_info": [row.get("extra_info") or {} for row in fields],
    }


def _truth(row: Mapping[str, Any], answer: Any) -> Any:
    judged = row.get("reward_model")
    own = judged["ground_truth"] if isinstance(judged, Mapping) and "ground_truth" in judged else None
    return answer if own is None else own


def _trl_arguments(parameters: Parameters, columns: Columns) -> dict[str, list[Any]]:
    """TRL's arguments: text where the data's prompt is text, else messages; each field of the data rows as a list."""
    texts = columns["response_text"]
    fields: Sequence[Mapping[str, Any]] = columns.get("row_fields", [])
    own = [row.get("prompt") for row in fields] if len(fields) else [None] * len(texts)
    messages = columns.get("messages", own)
    prompts = [prompt if prompt is not None else chat for prompt, chat in zip(own, messages, strict=True)]
    offered = {name: list(columns["answers"]) for name in ("answer", "answers") if "answers" in columns}
    offered |= {"data_source": list(columns["data_source"])} if "data_source" in columns else {}
    wanted = _wanted_fields(parameters, fields, frozenset(offered))
    offered |= {name: [row.get(name) for row in fields] for name in wanted}
    completions = [
        text if isinstance(prompt, str) else [{"role": "assistant", "content": text}]
        for text, prompt in zip(texts, prompts, strict=True)
    ]
    return {**offered, "prompts": prompts, "completions": completions}


def _wanted_fields(
    parameters: Parameters, fields: Sequence[Mapping[str, Any]], otherwise: frozenset[str]
) -> frozenset[str]:
    """The fields of data rows that the function takes: those that it requires even where no row has them."""
    if not len(fields):
        return frozenset()
    there = field_names(fields)
    wanted = there if parameters.takes_any else there & frozenset(parameters.names)
    return (wanted | (parameters.required - otherwise)) - _NO_FIELDS


def field_names(fields: Sequence[Mapping[str, Any]]) -> frozenset[str]:
    """The names that some data row has."""
    return frozenset(name for row in fields for name in row)
