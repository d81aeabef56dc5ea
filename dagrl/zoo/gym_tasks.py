"""Tasks of reasoning-gym (PyPI, arXiv 2505.24760) by reference: ``gym:chain_sum?min_terms=2&max_terms=3``.

Rows are made where they are read; one depends on the task, its options, ``seed``, the split and its index alone.
"""

from __future__ import annotations

import difflib
import json
from collections.abc import Callable, Collection, Mapping
from dataclasses import dataclass, field, fields
from functools import lru_cache
from typing import Any, NoReturn, get_type_hints
from urllib.parse import parse_qsl

from pydantic import TypeAdapter, ValidationError

from dagrl.errors import ConfigError, Problem

GYM = "gym:"
SPLITS = ("train", "test")
#: Options of ours, with what they are by default; every other one is the task's own.
OWN_OPTIONS: Mapping[str, int] = {"seed": 0, "size": 10_000, "test_size": 500}
#: A task adds a row's index to its seed; the test split's seeds begin where no training split's end.
_TEST_SEED = _MOST_ROWS = 2**31


@dataclass(frozen=True)
class GymTask:
    """One split of a task; ``reference`` is as the user wrote it."""

    reference: str
    name: str
    size: int
    _dataset: Any = field(repr=False)

    def entry(self, index: int) -> dict[str, Any]:
        """A row: ``question``, ``answer`` and ``metadata``, in plain Python types."""
        return dict(self._dataset[index])

    def score(self, answer: str, entry: Mapping[str, Any]) -> float:
        """What the task itself gives an answer, from 0 to 1; many tasks give part of it to one that is nearly right."""
        return float(self._dataset.score_answer(answer, dict(entry)))


@lru_cache(maxsize=16)
def open_gym_task(reference: str, split: str) -> GymTask:
    """The task of a reference.

    Raises:
        ConfigError: when reasoning-gym is missing, or naming what it does not have or allow.
    """
    _require_known("split of a gym task", split, SPLITS)
    name, _, query = reference.removeprefix(GYM).partition("?")
    create, configs = _registry()
    _require_known("gym task", name, configs)
    options = dict(OWN_OPTIONS) | _options(name, query, configs[name])
    seed, size = _place(options, split)
    options = {key: value for key, value in options.items() if key not in OWN_OPTIONS}
    try:
        dataset = create(name, **options, seed=seed, size=size)
    # A task's own checks raise whatever it likes, AssertionError for the most part.
    except Exception as error:
        what = f"`{reference}` is refused by the task: {error or type(error).__name__}"
        raise ConfigError([Problem(what, fix="change the options")]) from error
    return GymTask(reference, name, size, dataset)


def _registry() -> tuple[Callable[..., Any], Mapping[str, type]]:
    """How a task is made, and the config class of each."""
    try:
        from reasoning_gym.factory import DATASETS, create_dataset
    except ImportError as error:
        _refuse(f"gym tasks need reasoning-gym, which cannot be imported: {error}", "`pip install 'dagrl[gym]'`")
    return create_dataset, {name: config for name, (_, config) in DATASETS.items()}


def _options(name: str, query: str, config: type) -> dict[str, Any]:
    """The options of a reference, each of its declared type."""
    hints: Mapping[str, Any] = get_type_hints(config)
    known = {one.name: hints[one.name] for one in fields(config)} | dict.fromkeys(OWN_OPTIONS, int)
    try:
        pairs = parse_qsl(query, keep_blank_values=True, strict_parsing=bool(query))
    except ValueError:
        _refuse(f"`{query}` is no list of OPTION=VALUE of the gym task `{name}`", "write `?min_terms=2&max_terms=3`")
    found: dict[str, Any] = {}
    for key, text in pairs:
        _require_known(f"option of the gym task `{name}`", key, known)
        try:
            found[key] = TypeAdapter(known[key]).validate_python(_value(text))
        except ValidationError as error:
            said = error.errors()[0]["msg"]
            _refuse(f"`{key}={text}` of the gym task `{name}` is no such value: {said}", "give one of its type")
    return found


def _value(text: str) -> Any:
    """Numbers, lists, true, false and null as JSON has them; anything else is text."""
    try:
        return json.loads(text)
    except ValueError:
        return text


def _place(options: Mapping[str, Any], split: str) -> tuple[int, int]:
    """The seed of a split and how many rows it has."""
    for key in OWN_OPTIONS:
        least = 0 if key == "seed" else 1
        if not least <= options[key] < _MOST_ROWS:
            _refuse(f"`{key}` of a gym task is {options[key]}", f"give a number from {least} to below 2**31")
    if options["seed"] + max(options["size"], options["test_size"]) > _MOST_ROWS:
        _refuse(f"`seed={options['seed']}` leaves no room for the rows", "give a smaller seed")
    if split == "train":
        return options["seed"], options["size"]
    return options["seed"] + _TEST_SEED, options["test_size"]


def _require_known(kind: str, name: str, known: Collection[str]) -> None:
    if name in known:
        return
    nearest = difflib.get_close_matches(name, known, n=1)
    fix = f"did you mean `{nearest[0]}`?" if nearest else f"use one of {', '.join(sorted(known))}"
    raise ConfigError([Problem(f"there is no {kind} named `{name}`", fix=fix)])


def _refuse(what: str, fix: str) -> NoReturn:
    raise ConfigError([Problem(what, fix=fix)])
