"""What a node or loss declares, as frozen data read from its signature."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from types import MappingProxyType
from typing import TYPE_CHECKING, Any, Literal

from dagrl.data.columns import ColumnType
from dagrl.errors import Location

if TYPE_CHECKING:
    from dagrl.graph.checks import CallView

Needs = Literal["train", "rollout"]
Split = Literal["row", "group", "batch", "minibatch"]
Rows = Literal["same", "filter", "source"]
#: What a check says against a call: a sentence, or a sentence and how to mend it.
Refusal = str | tuple[str, str]
Check = Callable[["CallView"], Sequence[Refusal]]
#: Values that `dagrl check` uses: of options by name, and of a column one value for each row, repeated as needed.
Examples = Mapping[str, Any]
NO_EXAMPLES: Examples = MappingProxyType({})


class Required:
    """The default of an option that has none."""

    def __repr__(self) -> str:
        return "required"


REQUIRED = Required()

#: Keyword-only parameters that the executor fills; a pipeline cannot pass them.
EXECUTOR_KEYWORDS = frozenset({"wanted", "aliases", "step", "canary"})
#: Options that the compiler and the trainer read, which a node of the kind must therefore have.
SOURCE_OPTIONS = ("data", "split", "batch_size", "n")
MINIBATCH_OPTIONS = ("mini_batch_size", "epochs")
CANARY_OPTIONS = ("logprob_gap_tolerance",)


@dataclass(frozen=True)
class Read:
    """A column a node or loss reads."""

    name: str
    type: ColumnType
    optional: bool = False

    def __str__(self) -> str:
        return f"{self.name}: {self.type}"


@dataclass(frozen=True)
class Write:
    """A column a node writes; an optional one is computed only when somebody reads it."""

    name: str
    type: ColumnType
    optional: bool = False


@dataclass(frozen=True)
class Option:
    """A keyword-only parameter that a pipeline sets."""

    name: str
    annotation: Any
    default: Any = REQUIRED


@dataclass(frozen=True)
class Result:
    """How a node's return value is laid out: columns, then state, then metrics, each only if declared.

    ``columns`` is None (writes nothing), "one" (the value is the column) or the NamedTuple whose fields are.
    """

    columns: type | Literal["one"] | None
    state: bool
    metrics: bool

    @property
    def num_parts(self) -> int:
        """How many of the three a return value has."""
        return (self.columns is not None) + self.state + self.metrics


@dataclass(frozen=True)
class Role:
    """The parameter that receives a model worker, and the protocol it sees."""

    parameter: str
    protocol: type


@dataclass(frozen=True)
class NodeContract:
    """Everything the compiler and the executor know about a node."""

    name: str
    at: Location
    doc: str
    role: Role | None
    reads: tuple[Read, ...]
    carried: tuple[str, ...]
    loss_columns: str | None
    positions: str | None
    writes: tuple[Write, ...]
    options: tuple[Option, ...]
    executor_keywords: frozenset[str]
    state: type | None
    result: Result
    needs: Needs | None
    mutates: bool
    split: Split
    rows: Rows
    alias_of: str | None
    check: Check | None
    before_run: Check | None = None
    examples: Examples = field(default_factory=dict[str, Any], compare=False)

    @property
    def is_root(self) -> bool:
        """True for a call that is wanted for its effect: it mutates a model, or writes and filters nothing."""
        return self.mutates or (not self.writes and self.rows == "same")

    def option(self, name: str) -> Option | None:
        """The option of that name."""
        return next((option for option in self.options if option.name == name), None)


@dataclass(frozen=True)
class Hook:
    """A function beside a loss: ``prepare=`` over a mini-batch, or ``project=`` over logits.

    ``reads`` are columns; ``engine_inputs`` what the engine gives it beside them; ``options`` those of the loss that it
    takes too; ``gives`` what the loss reads of it by name. ``result`` is the NamedTuple that a ``prepare=`` returns.
    """

    name: str
    function: Callable[..., Any]
    at: Location
    reads: tuple[Read, ...]
    engine_inputs: frozenset[str]
    options: tuple[str, ...]
    gives: tuple[Read, ...]
    result: type | None = None


@dataclass(frozen=True)
class LossContract:
    """Everything the compiler and the engine know about a loss.

    ``reads`` are the columns of the loss and of the functions beside it; ``arguments`` are those that the loss itself
    takes, and what it takes of what these functions give.
    """

    name: str
    at: Location
    doc: str
    reads: tuple[Read, ...]
    engine_outputs: tuple[str, ...]
    options: tuple[Option, ...]
    check: Check | None
    examples: Examples = field(default_factory=dict[str, Any], compare=False)
    arguments: tuple[str, ...] = ()
    prepare: Hook | None = None
    project: Hook | None = None

    @property
    def tensors(self) -> frozenset[str]:
        """The names of all tensors that the loss takes."""
        return frozenset({*self.arguments, *self.engine_outputs})


Contract = NodeContract | LossContract


def kind_of(contract: Contract) -> Literal["node", "loss"]:
    """Which of the two it declares."""
    return "node" if isinstance(contract, NodeContract) else "loss"
