"""What the probes of nodes and of losses share: options, made-up rows, and what came of them as they are."""

from __future__ import annotations

import random
from abc import ABC, abstractmethod
from collections.abc import Callable, Collection, Generator, Mapping, Sequence
from contextlib import contextmanager
from functools import cached_property
from typing import Any, Generic, TypeVar

import numpy as np
import torch

from dagrl.contracts.batch import Batch
from dagrl.contracts.made_up import MadeUp, made_up_columns, made_up_options
from dagrl.contracts.make_batch import make_batch
from dagrl.contracts.options import require_accepted
from dagrl.contracts.outcome import Outcome
from dagrl.contracts.violation import Finding, RunFault
from dagrl.data.equality import equal
from dagrl.graph.contract import LossContract, NodeContract, Read
from dagrl.graph.pipeline import Call

C = TypeVar("C", NodeContract, LossContract)


class Probe(ABC, Generic[C]):
    """A node or loss with options, and the rows it is tried on.

    Raises:
        RunFault: when its own check refuses the options.
    """

    def __init__(
        self,
        contract: C,
        function: Callable[..., Any],
        *,
        given: Mapping[str, Any],
        options: Mapping[str, Any],
        call: Call,
        reads: Sequence[Read],
    ) -> None:
        self.contract: C = contract
        self.options = options
        self.call = call
        self.reads = reads
        invented = made_up_options(contract, given, options)
        require_accepted(contract, options, call, [option.name for option in invented])
        self.batch = make_batch(reads, function, contract.examples)
        self.optional = frozenset(read.name for read in reads if read.optional)
        self._made_up_options = invented

    @cached_property
    def expected(self) -> Outcome:
        """What it gives on the rows as they are."""
        return self.run(self.batch)

    @abstractmethod
    def run(self, batch: Batch, *, absent: Collection[str] = (), noise: int = 0) -> Outcome:
        """One run on copies; ``noise`` seeds the global generators, which nothing may use.

        Raises:
            RunFault: when it raises, breaks its declaration or edits its input.
        """

    def allows_without(self, absent: Collection[str]) -> bool:
        """Whether its check takes a call that lacks these optional columns."""
        return True

    def run_in(self, situation: str, batch: Batch, *, absent: Collection[str] = ()) -> Outcome:
        """A run whose faults say in which situation they came up."""
        with situated(situation):
            return self.run(batch, absent=absent)

    def made_up(self, *, every_column: bool) -> tuple[MadeUp, ...]:
        """The inputs that the suite had to invent; with ``every_column`` also rows that it drew from the legend."""
        return (*made_up_columns(self.reads, self.contract.examples, self.batch, every_column), *self._made_up_options)

    def try_optional_reads(self) -> None:
        """Run without each optional column, and without all of them."""
        for absent in {*(frozenset({name}) for name in self.optional), self.optional} - {frozenset[str]()}:
            if not self.allows_without(absent):
                continue
            names = ", ".join(f"`{name}`" for name in sorted(absent))
            self.run_in(f"without the optional {names}", self.batch, absent=absent)


@contextmanager
def situated(situation: str) -> Generator[None]:
    """Faults inside say in which situation they came up."""
    try:
        yield
    except RunFault as fault:
        finding = fault.finding
        raise RunFault(Finding(f"{finding.what} ({situation})", finding.fix, finding.at)) from fault


def require_untouched(before: Mapping[str, Any], after: Mapping[str, Any], fix: str) -> None:
    """See that a run left its inputs as they were.

    Raises:
        RunFault: naming the input that it edited.
    """
    for name, column in before.items():
        if not equal(column, after[name]):
            raise RunFault(Finding(f"edited its input `{name}`", fix))


@contextmanager
def global_noise(seed: int) -> Generator[None]:
    """The global random generators in a state of their own, put back afterwards."""
    states = torch.get_rng_state(), np.random.get_state(), random.getstate()
    torch.manual_seed(seed)
    np.random.seed(seed)
    random.seed(seed)
    try:
        yield
    finally:
        torch.set_rng_state(states[0])
        np.random.set_state(states[1])
        random.setstate(states[2])
