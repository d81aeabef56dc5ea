"""What reading a signature gathers: the parts of a contract, and every fault on the way."""

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

from dagrl.data.columns import ColumnType
from dagrl.errors import ContractError, Location, Problem
from dagrl.graph.annotations import AnnotationError, column_type
from dagrl.graph.contract import Option, Read, Role

Function = Callable[..., Any]
#: Stands for an annotation whose fault has been noted.
FAULTY = ColumnType("faulty", ())


@dataclass
class Draft:
    """What a signature has told so far, and what is wrong with it.

    ``given`` is what the functions beside a loss return, and ``taken`` what the loss takes of it.
    """

    role: Role | None = None
    reads: list[Read] = field(default_factory=list[Read])
    carried: list[str] = field(default_factory=list[str])
    loss_columns: str | None = None
    positions: str | None = None
    options: list[Option] = field(default_factory=list[Option])
    executor_keywords: set[str] = field(default_factory=set[str])
    engine_outputs: list[str] = field(default_factory=list[str])
    given: dict[str, ColumnType] = field(default_factory=dict[str, ColumnType])
    taken: list[str] = field(default_factory=list[str])
    state: type | None = None
    faults: list[tuple[str, str | None]] = field(default_factory=list[tuple[str, str | None]])

    def fault(self, what: str, fix: str | None = None) -> None:
        """Note that something is wrong."""
        self.faults.append((what, fix))

    def raise_faults(self, subject: str, at: Location) -> None:
        """End the declaration if anything is wrong.

        Raises:
            ContractError: with every fault that was noted.
        """
        if self.faults:
            raise ContractError([Problem(what, at, fix=fix) for what, fix in self.faults], subject)

    def column_or_fault(self, what: str, annotation: Any, first: str = "B") -> ColumnType | None:
        """The column type, None for no column, or ``FAULTY`` after an ill-formed one was noted."""
        try:
            return column_type(annotation, first)
        except AnnotationError as error:
            self.fault(f"{what} {error}")
            return FAULTY


def type_or_none(annotation: Any, first: str = "B") -> ColumnType | None:
    """The column type; None for no column and for an ill-formed one."""
    try:
        return column_type(annotation, first)
    except AnnotationError:
        return None
