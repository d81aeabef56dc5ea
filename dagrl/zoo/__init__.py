"""The models and tasks that ship with dagrl, by name: small files and plain Python.

``tiny`` is the start model, made by ``python -m dagrl.zoo.make_tiny --out DIR``; `pipelines/sft.py` makes one like it
as a pipeline. ``expert`` is a teacher, what the demo makes of ``tiny``: ``make demo OUT=RUN``, then
``python -m dagrl.zoo.make_expert --run RUN --out DIR``.

Nothing here imports torch or transformers, except the scripts that make a model, which no other file imports.
"""

import difflib
from collections.abc import Callable, Collection, Mapping, Sequence
from pathlib import Path
from types import MappingProxyType

from dagrl.errors import ConfigError, Problem
from dagrl.zoo.larger import SPLITS, Larger, Row

__all__ = ["Row", "model_folder", "open_task"]

_HERE = Path(__file__).parent
_MODELS: Mapping[str, Path] = MappingProxyType({name: _HERE / name for name in ("expert", "tiny")})
_TASKS: Mapping[str, Callable[[str], Sequence[Row]]] = MappingProxyType({"larger": Larger})
_SPLITS: Mapping[str, Collection[str]] = MappingProxyType({"larger": SPLITS})


def open_task(name: str, split: str) -> Sequence[Row]:
    """Return the rows of a packaged task's split.

    Raises `ConfigError` naming the known tasks or splits if there is none of that name.
    """
    _require_known("task", name, _TASKS)
    _require_known(f"split of `{name}`", split, _SPLITS[name])
    return _TASKS[name](split)


def model_folder(name: str) -> Path:
    """Return the folder of a packaged model, in the layout that transformers loads.

    Raises `ConfigError` naming the known models if there is none of that name.
    """
    _require_known("model", name, _MODELS)
    return _MODELS[name]


def _require_known(kind: str, name: str, known: Collection[str]) -> None:
    if name in known:
        return
    nearest = difflib.get_close_matches(name, known, n=1)
    fix = f"did you mean `{nearest[0]}`?" if nearest else f"use {' or '.join(f'`{each}`' for each in sorted(known))}"
    facts = (("known", ", ".join(sorted(known))),)
    raise ConfigError([Problem(f"the zoo has no {kind} named `{name}`", facts=facts, fix=fix)])
