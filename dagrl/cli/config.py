"""Values for a pipeline file's ``Config``: from its defaults and ``--set key=value``, all faults at once."""

import ast
import dataclasses
import sys
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any, get_args, get_type_hints

from pydantic import PydanticUserError, TypeAdapter, ValidationError

from dagrl.errors import ConfigError, Location, Problem
from dagrl.graph.annotations import split_optional
from dagrl.graph.options import did_you_mean

#: Texts that switch an optional field off; of a flag, false and off are values.
_NONE = frozenset({"none", "null", "false", "off", ""})
_NO_FLAG = frozenset({"none", "null", ""})


def split_assignments(texts: Sequence[str]) -> dict[str, str]:
    """``["n=8"]`` as ``{"n": "8"}``; a later one for the same key wins.

    Raises:
        ConfigError: for a text that is not ``key=value``.
    """
    faulty = [text for text in texts if not text.partition("=")[0].strip() or "=" not in text]
    if faulty:
        raise ConfigError(
            [Problem(f"`--set {text}` is not `key=value`.", fix="write e.g. `--set n=8`") for text in faulty]
        )
    pairs = (text.partition("=") for text in texts)
    return {key.strip(): value.strip() for key, _, value in pairs}


def make_config(config_class: type, values: Mapping[str, str], file: str, source: str) -> Any:
    """An instance of the file's ``Config``.

    Raises:
        ConfigError: naming every unknown key, missing value and value of the wrong type.
    """
    places = _field_places(config_class, file, source)
    fields = {field.name: field for field in dataclasses.fields(config_class) if field.init}
    hints = _hints(config_class, places[""])
    problems = [
        Problem(f"`{config_class.__name__}` has no field `{key}`.", places[""], fix=_known(key, fields))
        for key in values
        if key not in fields
    ]
    parsed: dict[str, Any] = {}
    for name, field in fields.items():
        at = places.get(name, places[""])
        try:
            parsed |= _field_value(field, hints[name], values)
        except ValueError as error:
            problems.append(Problem(f"`{name}`: {error}.", at, fix=_declared(name, hints[name], values.get(name))))
    if problems:
        raise ConfigError(problems)
    return config_class(**parsed)


def _known(key: str, fields: Iterable[str]) -> str:
    """The nearest field; a key with dots is looked for by its last part, since fields have none inside them."""
    nested = "a field is set whole, without dots: " if "." in key else ""
    return nested + did_you_mean(key.rpartition(".")[2], fields)


def _declared(name: str, hint: Any, text: str | None) -> str:
    declared = f"it is declared `{name}: {_shown(hint)}`"
    if text is None or text.lower() not in _NONE:
        return declared
    return (
        f"{declared}; to let `{text}` switch it off, declare `{name}: {_shown(hint)} | None` and heed None in `build`"
    )


def _hints(config_class: type, at: Location) -> dict[str, Any]:
    try:
        return get_type_hints(config_class)
    except NameError as error:
        what = f"an annotation in `{config_class.__name__}` uses `{error.name}`, which does not resolve."
        raise ConfigError([Problem(what, at, fix="import it at module level, outside TYPE_CHECKING")]) from error


def _field_value(field: dataclasses.Field[Any], hint: Any, values: Mapping[str, str]) -> dict[str, Any]:
    """The field's value as keyword; nothing where a default factory makes it."""
    if field.name in values:
        return {field.name: parse_text(values[field.name], hint)}
    if field.default is not dataclasses.MISSING:
        return {field.name: _validated(field.default, hint, strict=True)}
    if field.default_factory is dataclasses.MISSING:
        raise ValueError("it has no default and was not set: pass `--set " + field.name + "=...`")
    return {}


def parse_text(text: str, hint: Any) -> Any:
    """The value of a field type that a text stands for: ``1e-6`` a float, ``none`` or ``false`` an absent option.

    Raises:
        ValueError: saying why the text is none.
    """
    inner, optional = split_optional(hint)
    absent = _NO_FLAG if inner is bool else _NONE
    if (optional or None in get_args(hint)) and text.lower() in absent:
        return None
    try:
        return _validated(text, hint, strict=False)
    except ValueError as error:
        try:
            return TypeAdapter(hint).validate_json(text, strict=True)
        except (ValueError, PydanticUserError):
            raise error from None


def _validated(value: Any, hint: Any, *, strict: bool) -> Any:
    try:
        return TypeAdapter(hint).validate_python(value, strict=strict)
    except PydanticUserError as error:
        if strict:
            return value
        raise ValueError("its type cannot be given on the command line") from error
    except ValidationError as error:
        reason = error.errors()[0]["msg"].replace("Input should be", "it should be")
        raise ValueError(f"got {value!r}; {reason[0].lower()}{reason[1:]}") from error


def _shown(hint: Any) -> str:
    return hint.__name__ if isinstance(hint, type) else str(hint)


def _field_places(config_class: type, file: str, source: str) -> dict[str, Location]:
    """Where each field is declared, in the class or the nearest of its bases; the class itself under the empty name."""
    places: dict[str, Location] = {}
    for base in reversed(config_class.__mro__[1:]):
        there = _source_of(base)
        if there is not None:
            places |= _places_in(base.__name__, str(there), there.read_text(encoding="utf-8-sig"))
    return places | _places_in(config_class.__name__, file, source)


def _source_of(base: type) -> Path | None:
    """The file in which a dataclass is written, where there is one to read."""
    module = sys.modules.get(base.__module__) if dataclasses.is_dataclass(base) else None
    there = None if module is None else vars(module).get("__file__")
    return Path(there) if isinstance(there, str) and there.endswith(".py") and Path(there).is_file() else None


def _places_in(class_name: str, file: str, source: str) -> dict[str, Location]:
    return {name: Location(file, line) for name, line in _field_lines(class_name, source).items()}


def _field_lines(class_name: str, source: str) -> dict[str, int]:
    """The line of each annotated field of the class; the class itself under the empty name."""
    for statement in ast.walk(ast.parse(source)):
        if isinstance(statement, ast.ClassDef) and statement.name == class_name:
            fields = [item for item in statement.body if isinstance(item, ast.AnnAssign)]
            return {"": statement.lineno, **{f.target.id: f.lineno for f in fields if isinstance(f.target, ast.Name)}}
    return {"": 1}
