"""What the suite finds: a rule, what was seen, where, and how to mend it."""

from __future__ import annotations

import traceback
from dataclasses import dataclass

from dagrl.errors import Location, NodeError, Problem
from dagrl.graph.contract import Contract, kind_of


@dataclass(frozen=True)
class Violation:
    """One rule that a node or loss does not keep."""

    subject: str
    rule: str
    what: str
    at: Location
    fix: str
    made_up: tuple[str, ...] = ()

    @property
    def problem(self) -> Problem:
        """The violation as one entry of an error message."""
        facts = [("rule", self.rule), *([("made up", "\n".join(self.made_up))] if self.made_up else [])]
        return Problem(f"{self.subject}: {self.what}", self.at, tuple(facts), self.fix)

    def __str__(self) -> str:
        return "\n".join(self.problem.lines())


@dataclass(frozen=True)
class Finding:
    """What a rule saw and how to mend it; it becomes a violation of that rule.

    ``raised`` says that the function raised on the rows that it was given.
    """

    what: str
    fix: str
    at: Location | None = None
    raised: bool = False


class RunFault(Exception):
    """The function raised, or returned what its declaration does not allow."""

    def __init__(self, finding: Finding) -> None:
        super().__init__(finding.what)
        self.finding = finding


def subject_of(contract: Contract) -> str:
    """``node `x``` or ``loss `x```."""
    return f"{kind_of(contract)} `{contract.name}`"


def violation(contract: Contract, rule: str, finding: Finding) -> Violation:
    """The finding as a violation of ``rule``."""
    return Violation(subject_of(contract), rule, finding.what, finding.at or contract.at, finding.fix)


def fault_of(error: Exception, contract: Contract) -> RunFault:
    """What an exception of a run says, at the line of the user's file that it passed last."""
    if isinstance(error, NodeError):
        return RunFault(Finding(str(error).removeprefix(f"`{contract.name}` "), "make it do what its signature says"))
    frames = [frame for frame in traceback.extract_tb(error.__traceback__) if frame.filename == contract.at.file]
    at = Location(frames[-1].filename, frames[-1].lineno or contract.at.line) if frames else None
    message = str(error).strip().split("\n", 1)[0] or "no message"
    return RunFault(Finding(f"raised {type(error).__name__}: {message.rstrip('.')}", "make it work there", at, True))
