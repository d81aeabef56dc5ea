"""Which inputs of a node or loss the suite had to invent, and how a message says so."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from dagrl.contracts.batch import Batch
from dagrl.contracts.options import BY_NAME
from dagrl.contracts.outcome import shown
from dagrl.data.columns import LEGEND
from dagrl.graph.contract import REQUIRED, Contract, Examples, Read, kind_of
from dagrl.graph.losses import LossTerms

#: Columns whose content is the user's own, though the legend has them.
_OWN_CONTENT = frozenset({"row_fields", "reward_details"})
_SHOWN = 40


@dataclass(frozen=True)
class MadeUp:
    """An invented input: a column, or an option."""

    name: str
    value: str
    is_column: bool

    def __str__(self) -> str:
        return f"`{self.name}` (e.g. {self.value})" if self.is_column else f"`{self.name}={self.value}`"

    @property
    def example(self) -> str:
        """Its place in ``examples=``."""
        return f'"{self.name}": {"[...]" if self.is_column else "..."}'


def made_up_options(contract: Contract, given: Mapping[str, Any], values: Mapping[str, Any]) -> tuple[MadeUp, ...]:
    """The options whose value was chosen by type alone."""
    known = {*given, *contract.examples, *BY_NAME}
    options = (option for option in contract.options if option.default is REQUIRED and option.name not in known)
    return tuple(
        MadeUp(option.name, _short(values[option.name]), is_column=False)
        for option in options
        if option.annotation is not LossTerms
    )


def made_up_columns(reads: Sequence[Read], examples: Examples, batch: Batch, every_column: bool) -> tuple[MadeUp, ...]:
    """The columns that were drawn by type alone; with ``every_column`` also those that the legend describes."""
    chosen = [read for read in reads if read.name not in examples and (every_column or _is_own(read))]
    return tuple(MadeUp(read.name, _short(batch.columns[read.name][0]), is_column=True) for read in chosen)


def _is_own(read: Read) -> bool:
    known = LEGEND.get(read.name)
    return known is None or known.type != read.type or read.name in _OWN_CONTENT


def _short(value: Any) -> str:
    text = shown(value)
    return text if len(text) <= _SHOWN else f"{text[: _SHOWN - 3]}..."


def examples_fix(contract: Contract, made_up: Sequence[MadeUp]) -> str:
    """How to give real inputs in place of invented ones."""
    examples = ", ".join(one.example for one in made_up)
    return f"`@{kind_of(contract)}(examples={{{examples}}})`"
