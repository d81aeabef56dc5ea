"""Rules of the contract suite, and the one loop that tries them on a probe."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from typing import Any, Generic, TypeVar

from dagrl.contracts.made_up import examples_fix
from dagrl.contracts.probe import Probe
from dagrl.contracts.violation import Finding, RunFault, Violation, violation
from dagrl.graph.contract import Contract

P = TypeVar("P", bound=Probe[Any])
RUNS = "runs"


@dataclass(frozen=True)
class Rule(Generic[P]):
    """A rule by its name; ``seen`` says what breaks it, if anything does and the rule is about this declaration."""

    name: str
    seen: Callable[[P], Finding | None]


def broken_rules(contract: Contract, probe: Callable[[], P], rules: Sequence[Rule[P]]) -> list[Violation]:
    """Every rule that is broken; where it does not even run on ordinary rows, that alone."""
    try:
        made = probe()
    except RunFault as fault:
        return [violation(contract, RUNS, fault.finding)]
    found = _tried(made, Rule(RUNS, _runs))
    return found or [one for rule in rules for one in _tried(made, rule)]


def _runs(probe: Probe[Any]) -> Finding | None:
    _ = probe.expected
    return None


def _tried(probe: P, rule: Rule[P]) -> list[Violation]:
    """The violation of one rule, if it is broken; it says which inputs were made up where they may be the cause."""
    try:
        finding = rule.seen(probe)
    except RunFault as fault:
        finding = fault.finding
    if finding is None:
        return []
    found = violation(probe.contract, rule.name, finding)
    if rule.name == RUNS and not finding.raised:  # what it returned or edited is wrong with any input
        return [found]
    made_up = probe.made_up(every_column=rule.name == RUNS)
    if not made_up:
        return [found]
    fix = f"{finding.fix}\nif it is never given such inputs, give it others: {examples_fix(probe.contract, made_up)}"
    return [replace(found, fix=fix, made_up=tuple(str(one) for one in made_up))]
