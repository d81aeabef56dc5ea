"""Losses as typed functions that bind to options and add up with coefficients."""

from __future__ import annotations

import functools
from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Any, Generic, ParamSpec, TypeVar, overload

from dagrl.errors import Location, Problem
from dagrl.graph.contract import NO_EXAMPLES, Check, Examples, LossContract, Read
from dagrl.graph.draft import Function
from dagrl.graph.options import option_problems, with_defaults
from dagrl.graph.signature import loss_contract, require_parentheses
from dagrl.graph.source import by_name, caller_location

P = ParamSpec("P")
R = TypeVar("R")


@dataclass(frozen=True)
class LossTerm:
    """A loss bound to its options, times a coefficient; wrong options are kept as problems for the compiler."""

    loss: Loss[..., Any]
    options: tuple[tuple[str, Any], ...]
    coefficient: float
    at: Location
    problems: tuple[Problem, ...] = ()

    @property
    def contract(self) -> LossContract:
        """The contract of the loss."""
        return self.loss.contract

    def option_values(self) -> dict[str, Any]:
        """Given options and defaults."""
        return with_defaults(self.contract.options, dict(self.options))

    def __str__(self) -> str:
        call = f"{self.contract.name}({', '.join(f'{name}={value!r}' for name, value in self.options)})"
        return call if self.coefficient == 1 else f"{self.coefficient:g} * {call}"


@dataclass(frozen=True)
class LossTerms:
    """A sum of loss terms: ``ppo_clip(eps=0.2) + 0.01 * kl_loss(kind="k3")``.

    A term with coefficient 0 stays visible but is not ``live``: its columns are not read.
    """

    terms: tuple[LossTerm, ...]

    @property
    def live(self) -> tuple[LossTerm, ...]:
        """The terms that count."""
        return tuple(term for term in self.terms if term.coefficient != 0)

    @property
    def dropped(self) -> tuple[LossTerm, ...]:
        """The terms with coefficient 0."""
        return tuple(term for term in self.terms if term.coefficient == 0)

    def reads(self) -> tuple[Read, ...]:
        """The columns that live terms read, each once; required where any term requires it."""
        merged: dict[str, Read] = {}
        for term in self.live:
            for read in term.contract.reads:
                known = merged.get(read.name, read)
                merged[read.name] = replace(read, optional=known.optional and read.optional)
        return tuple(merged.values())

    def __add__(self, other: LossTerms) -> LossTerms:
        if not isinstance(other, LossTerms):  # pyright: ignore[reportUnnecessaryIsInstance]
            raise TypeError(f"a loss is added to a loss, not to {other!r}; call it with its options first")
        return LossTerms(self.terms + other.terms)

    def __neg__(self) -> LossTerms:
        return self * -1.0

    def __sub__(self, other: LossTerms) -> LossTerms:
        return self + (-other if isinstance(other, LossTerms) else other)  # pyright: ignore[reportUnnecessaryIsInstance]

    def __mul__(self, factor: float) -> LossTerms:
        if isinstance(factor, bool) or not isinstance(factor, int | float):  # pyright: ignore[reportUnnecessaryIsInstance]
            raise TypeError(f"a loss is multiplied by a number, not by {factor!r}")
        return LossTerms(tuple(replace(term, coefficient=term.coefficient * factor) for term in self.terms))

    __rmul__ = __mul__

    def __str__(self) -> str:
        return " + ".join(str(term) for term in self.terms).replace("+ -", "- ")


class Loss(Generic[P, R]):
    """A declared loss: called with options it binds, called with tensors it runs."""

    def __init__(self, function: Callable[P, R], contract: LossContract) -> None:
        functools.update_wrapper(self, function)
        self.function = function
        self.contract = contract
        self._tensors = contract.tensors

    @overload
    def __call__(self, **options: Any) -> LossTerms: ...
    @overload
    def __call__(self, *args: P.args, **kwargs: P.kwargs) -> R: ...
    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        """Bind options, or run on tensors when any are given."""
        if args or not self._tensors.isdisjoint(kwargs):
            return self.function(*args, **kwargs)
        at = caller_location()
        problems = tuple(option_problems(self.contract.name, self.contract.options, kwargs, at))
        return LossTerms((LossTerm(self, tuple(kwargs.items()), 1.0, at, problems),))

    def __repr__(self) -> str:
        return f"<loss {self.contract.name}>"

    def __reduce__(self) -> str | tuple[Any, ...]:
        return by_name(self.function, self.contract.name) or (Loss, (self.function, self.contract))


def loss(
    bare: None = None,
    /,
    *,
    check: Check | None = None,
    examples: Examples = NO_EXAMPLES,
    prepare: Function | None = None,
    project: Function | None = None,
) -> Callable[[Callable[P, R]], Loss[P, R]]:
    """Declare a loss: per-token losses [B, T] and Metrics from columns and the engine's ``new_...`` outputs.

    Masked places of the returned losses are never read; the engine averages and scales. ``check`` and ``examples``
    are those of ``@node``, and so is ``bare``. A loss that needs more than its own rows' columns and the engine's
    outputs has functions beside it, typed like a node. Both may take options of the loss (keyword-only, by name);
    the columns that they read count as read by the loss, and the loss takes what they return by name.

    ``prepare=fn`` sees a whole mini-batch, the rows of all ranks, before the first backward pass of each of its
    optimizer steps. ``fn`` reads columns, ``new_logprobs`` [B T] (detached, without dropout, 0 where nothing is
    trained) and ``token_uniform`` [B T] (in [0, 1), drawn for the row's seed, the optimizer step and the place:
    independent of row order, padding, micro-batches and ranks), and returns a NamedTuple of columns. Rows come in
    the order of their seeds, each once. Where it reads ``new_logprobs``, or a column that the plan aliases to one of
    the engine's outputs, the engine runs one forward pass without gradient over the mini-batch. It is spared where the
    update's own first forward pass gives the log-probs: each rank has its rows of the mini-batch in one micro-batch,
    and there is no dropout. An aliased ``old_logprobs`` costs nothing more: one forward pass serves both.

    ``project=fn`` maps logits to one number for each trained token: ``fn(new_logits [N V], columns as [N ...]) ->
    [N]``; the loss takes the result as [B T] under the function's name, 0 where nothing is trained. Logits are float32
    and divided by the row's temperature, so that their log-softmax is the distribution of ``new_logprobs``. The engine
    runs it chunk by chunk as it computes log-probs, and again in the backward pass, so each token must be computed by
    itself. A column [B] is repeated for each token if the legend has it; others are [B T ...].

    Raises:
        ContractError: when the signature is no contract.
    """
    require_parentheses("loss", bare, "write `@loss()`; options are keyword-only parameters of the function")

    def declare(function: Callable[P, R]) -> Loss[P, R]:
        return Loss(function, loss_contract(function, check=check, examples=examples, prepare=prepare, project=project))

    return declare
