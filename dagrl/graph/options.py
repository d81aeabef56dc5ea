"""Check the options of a call against the declaration, all faults at once."""

import difflib
from collections.abc import Iterable, Mapping
from functools import lru_cache
from math import inf, isnan
from typing import Any

from pydantic import ConfigDict, PydanticUserError, TypeAdapter, ValidationError

from dagrl.errors import Location, Problem, with_article
from dagrl.graph.annotations import split_optional
from dagrl.graph.contract import REQUIRED, Option

_LEAST_INT, _MOST_INT = -(2**63), 2**63 - 1
_MOST_FLOAT = (2 - 2**-23) * 2.0**127


def nearest(name: str, known: Iterable[str]) -> str | None:
    """The known name closest to ``name``, if one is close."""
    return next(iter(difflib.get_close_matches(name, list(known), n=1, cutoff=0.5)), None)


def did_you_mean(name: str, known: Iterable[str]) -> str:
    """A fix that names the nearest known name, else all of them."""
    known = sorted(known)
    close = nearest(name, known)
    if close is not None:
        return f"did you mean `{close}`?"
    return f"known: {', '.join(f'`{option}`' for option in known)}" if known else "it takes none"


@lru_cache(maxsize=512)
def _adapter(annotation: Any) -> TypeAdapter[Any]:
    return TypeAdapter(annotation, config=ConfigDict(arbitrary_types_allowed=True))


def type_fault(value: Any, annotation: Any) -> str | None:
    """Why ``value`` is not of the annotated type, or None.

    A class of the user's or ours is checked by isinstance; builtins, unions and literals by pydantic, strictly.
    A type that cannot be checked, such as a plain protocol, takes any value. NaN is a value of no option, nor is a
    number that a tensor of int64 or float32 cannot hold; inf may be one by itself, not among several.
    """
    if (fault := _number_fault(value)) is not None:
        return fault
    inner, optional = split_optional(annotation)
    if inner is Any or (optional and value is None):
        return None
    try:
        if isinstance(inner, type) and inner.__module__ != "builtins":
            return None if isinstance(value, inner) else f"it should be {with_article(inner.__name__)}"
        _adapter(annotation).validate_python(value, strict=True)
    except (PydanticUserError, TypeError):
        return None
    except ValidationError as error:
        return error.errors()[0]["msg"].replace("Input should be", "it should be")
    return None


def _number_fault(value: Any) -> str | None:
    """Why a number, or one in a list, tuple or mapping, is none that can be computed with."""
    match value:
        case bool():
            return None
        case int() if not _LEAST_INT <= value <= _MOST_INT:
            return "it is beyond the range of int64"
        case float() if isnan(value):
            return "it is not a number"
        case float() if _MOST_FLOAT < abs(value) < inf:
            return "it is beyond the range of float32"
        case list() | tuple() | dict():
            values: Iterable[Any] = value.values() if isinstance(value, dict) else value
            faults = (f"{one!r} in it is infinite" if one in (inf, -inf) else _number_fault(one) for one in values)
            return next((fault for fault in faults if fault is not None), None)
        case _:
            return None


def option_problems(owner: str, declared: tuple[Option, ...], given: Mapping[str, Any], at: Location) -> list[Problem]:
    """Unknown, missing and ill-typed options of ``owner``."""
    by_name = {option.name: option for option in declared}
    problems: list[Problem] = []
    for name, value in given.items():
        if name not in by_name:
            problems.append(Problem(f"`{owner}` has no option `{name}`.", at, fix=did_you_mean(name, by_name)))
            continue
        fault = type_fault(value, by_name[name].annotation)
        if fault is not None:
            what = f"`{owner}` got `{name}={value!r}`: {fault}."
            problems.append(Problem(what, at, fix=f"pass `{name}` as {_type_name(by_name[name].annotation)}"))
    missing = [option.name for option in declared if option.default is REQUIRED and option.name not in given]
    problems += [
        Problem(f"`{owner}` needs the option `{name}`.", at, fix=f"pass `{name}=...` to `{owner}`") for name in missing
    ]
    return problems


def _type_name(annotation: Any) -> str:
    return getattr(annotation, "__name__", str(annotation)) if isinstance(annotation, type) else str(annotation)


def with_defaults(declared: tuple[Option, ...], given: Mapping[str, Any]) -> dict[str, Any]:
    """Given options that exist, and the defaults of the others; a missing required one is left out."""
    values = {option.name: given.get(option.name, option.default) for option in declared}
    return {name: value for name, value in values.items() if value is not REQUIRED}
