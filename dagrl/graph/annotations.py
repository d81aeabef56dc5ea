"""Read a parameter's or result's annotation: which column type it stands for."""

import inspect
import re
import types
import typing
from collections.abc import Callable
from typing import Any, Union, get_args, get_origin

from jaxtyping import AbstractArray

from dagrl.data.columns import DTYPES, ColumnType, Objects

_SHORT = {long: short for short, long in DTYPES.items()}


#: What the first dim of an annotation must be, by where it stands.
_FIRST_DIMS = {"B": "of a column is B, the rows", "N": "is N here, the trained tokens"}


class AnnotationError(Exception):
    """An annotation that says nothing a contract can use; the text completes "parameter `x` ..."."""


def resolve_hints(function: Callable[..., Any] | type) -> dict[str, Any]:
    """The evaluated annotations of a function or NamedTuple.

    Raises:
        AnnotationError: naming the parameter whose annotation does not resolve.
    """
    try:
        return typing.get_type_hints(function)
    except NameError as error:
        raise AnnotationError(_unresolved(function, error)) from error


def _unresolved(function: Callable[..., Any] | type, error: NameError) -> str:
    missing = error.name or str(error)
    annotations = inspect.get_annotations(function)
    holders = [name for name, text in annotations.items() if re.search(rf"\b{re.escape(missing)}\b", str(text))]
    if not holders:
        return f"an annotation uses `{missing}`, which does not resolve"
    kind = "field" if inspect.isclass(function) else "parameter"
    where = " and ".join("the result" if name == "return" else f"{kind} `{name}`" for name in holders)
    return f"{where} uses `{missing}`, which does not resolve"


def split_optional(annotation: Any) -> tuple[Any, bool]:
    """The annotation without ``| None``, and whether it had it."""
    if get_origin(annotation) not in (Union, types.UnionType):
        return annotation, False
    members = [member for member in get_args(annotation) if member is not type(None)]
    has_none = len(members) < len(get_args(annotation))
    return (members[0], has_none) if len(members) == 1 else (annotation, False)


def column_type(annotation: Any, first: str = "B") -> ColumnType | None:
    """The column type of a jaxtyping or ``Objects`` annotation; None for anything else.

    Raises:
        AnnotationError: for an array annotation that names no single dtype, or whose first dim is not ``first``.
    """
    if get_origin(annotation) is Objects or annotation is Objects:
        return ColumnType("object", ("B",))
    if not (inspect.isclass(annotation) and issubclass(annotation, AbstractArray)):
        return None
    dtypes = tuple(str(dtype) for dtype in annotation.dtypes if dtype != "bool_")
    if len(dtypes) != 1 or dtypes[0] not in _SHORT:
        raise AnnotationError("must name one dtype: write Float32, Int64 or Bool, not Float, Int or Shaped")
    dims = tuple(str(annotation.dim_str).split())
    if not dims or dims[0] != first:
        raise AnnotationError(f'has the dims "{" ".join(dims)}": the first dim {_FIRST_DIMS[first]}')
    return ColumnType(_SHORT[dtypes[0]], dims)
