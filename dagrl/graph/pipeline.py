"""The pipeline: calls of nodes and the edges between them, recorded as the user's file runs.

Faults are collected, not raised, so that one error can list all of them.
"""

from __future__ import annotations

import re
from collections.abc import Generator, Iterator, Mapping
from contextlib import contextmanager
from contextvars import ContextVar, Token
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, Any

import networkx as nx

from dagrl.data.columns import ColumnType
from dagrl.errors import Location, PipelineFileError, Problem, with_article
from dagrl.graph.contract import NodeContract, Read
from dagrl.graph.losses import LossTerms
from dagrl.graph.options import did_you_mean, option_problems, type_fault, with_defaults
from dagrl.graph.source import caller_location
from dagrl.graph.specs import WorkerGroup, maker_of, require_name

if TYPE_CHECKING:
    from dagrl.graph.node import Node

_CALL_NAME = re.compile(r"[\w.-]+")
_ACTIVE: ContextVar[Pipeline | None] = ContextVar("dagrl_pipeline", default=None)
_OPENED: ContextVar[list[Pipeline] | None] = ContextVar("dagrl_opened_pipelines", default=None)


def active_pipeline() -> Pipeline | None:
    """The pipeline whose ``with`` block is running."""
    return _ACTIVE.get()


@contextmanager
def recorded_pipelines() -> Generator[list[Pipeline]]:
    """Every pipeline opened inside the block, also when the block raises."""
    opened: list[Pipeline] = []
    token = _OPENED.set(opened)
    try:
        yield opened
    finally:
        _OPENED.reset(token)


@dataclass(frozen=True)
class Origin:
    """Where a column comes from: a call's name and the name under which that call writes it."""

    call: str
    column: str

    def __str__(self) -> str:
        return f"{self.call}.{self.column}"


@dataclass(frozen=True)
class Edge:
    """The columns that a call hands on; narrowed by ``only``, renamed by ``rename``."""

    pipeline: Pipeline = field(repr=False)
    call: str
    columns: Mapping[str, str]

    def only(self, *names: str) -> Edge:
        """An edge with just these columns."""
        self._report_unknown("only", names)
        return replace(self, columns={name: self.columns[name] for name in names if name in self.columns})

    def rename(self, **names: str) -> Edge:
        """An edge on which column ``old`` is read as ``new``: ``edge.rename(rewards="baseline_rewards")``."""
        self._report_unknown("rename", names)
        for old in [old for old, new in names.items() if type_fault(new, str) or not new.isidentifier()]:
            self.pipeline.report(f"`rename` got `{old}={names.pop(old)!r}`, which is no name.", fix="give a string")
        renamed = {names.get(visible, visible): source for visible, source in self.columns.items()}
        if len(renamed) < len(self.columns):
            twice = ", ".join(f"`{new}`" for new in names.values())
            self.pipeline.report(
                f"`rename` gives two columns of `{self.call}` one name: {twice}.", fix="pick a new name"
            )
        return replace(self, columns=renamed)

    def _report_unknown(self, method: str, names: Any) -> None:
        for name in names:
            if name not in self.columns:
                what = f"`{method}` names `{name}`, which the edge from `{self.call}` does not carry."
                self.pipeline.report(what, fix=did_you_mean(name, self.columns))

    def __getattr__(self, name: str) -> Any:
        if name.startswith("_"):
            raise AttributeError(name)
        raise AttributeError(
            f"an edge has no `{name}`: it stands for columns of a step that has not run; compute with them in a @node"
        )

    def __hash__(self) -> int:
        return hash((id(self.pipeline), self.call, tuple(self.columns.items())))

    def __iter__(self) -> Iterator[Any]:
        raise TypeError(f"the edge from `{self.call}` cannot be unpacked: pass it whole, or narrow it with `only`")


@dataclass(frozen=True)
class Refill:
    """A block of calls, repeated until ``groups`` groups have passed its filters or ``max_rounds`` rounds are over."""

    name: str
    groups: int
    max_rounds: int
    at: Location


@dataclass(frozen=True, eq=False)
class Call:
    """One use of a node in a pipeline; ``loop`` names the `refill` block that it stands in."""

    name: str
    node: Node[..., Any]
    inputs: tuple[Edge, ...]
    group: WorkerGroup | None
    given: Mapping[str, Any]
    state: Any
    at: Location
    index: int
    loop: str | None = None

    @property
    def contract(self) -> NodeContract:
        """The contract of the node."""
        return self.node.contract

    @property
    def options(self) -> dict[str, Any]:
        """Given options and the defaults of the others."""
        return with_defaults(self.contract.options, self.given)

    @property
    def loss_terms(self) -> tuple[LossTerms, ...]:
        """The losses among the options."""
        return tuple(value for value in self.options.values() if isinstance(value, LossTerms))

    def reads(self) -> tuple[Read, ...]:
        """The columns that the call reads, those of its live loss terms included."""
        merged = {read.name: read for read in self.contract.reads}
        for terms in self.loss_terms:
            for read in terms.reads():
                known = merged.get(read.name)
                merged[read.name] = read if known is None or known.optional else known
        return tuple(merged.values())

    def origins(self, column: str) -> tuple[Origin, ...]:
        """Every distinct origin of a column among the edges passed in."""
        found = [Origin(edge.call, edge.columns[column]) for edge in self.inputs if column in edge.columns]
        return tuple(dict.fromkeys(found))

    def column_type(self, column: str) -> ColumnType:
        """The type of a column that the call writes."""
        return next(write.type for write in self.contract.writes if write.name == column)


class Pipeline:
    """A graph of node calls, recorded inside ``with Pipeline("name") as step:``.

    The first pipeline that ``build`` returns is the step and runs ``steps`` times; one with ``every=k`` runs
    before the first step, after every k steps and after the last, over its whole data. ``is_complete`` says that its
    ``with`` block has ended without an error.
    """

    def __init__(self, name: str, *, steps: int | None = None, every: int | None = None) -> None:
        self.name = name
        self.steps = steps
        self.every = every
        self.at = caller_location()
        require_name("pipeline", name, self.at)
        self.is_complete = False
        self.problems: list[Problem] = []
        self.graph: nx.DiGraph[str] = nx.DiGraph()
        self.loops: dict[str, Refill] = {}
        self._loop: str | None = None
        self._token: Token[Pipeline | None] | None = None
        opened = _OPENED.get()
        if opened is not None:
            opened.append(self)

    @property
    def calls(self) -> tuple[Call, ...]:
        """The calls in the order in which the file makes them."""
        return tuple(self.graph.nodes[name]["call"] for name in self.graph.nodes)

    def call(self, name: str) -> Call:
        """The call of that name."""
        return self.graph.nodes[name]["call"]

    def ancestors(self, name: str) -> tuple[Call, ...]:
        """The calls that a call descends from, in file order."""
        found = nx.ancestors(self.graph, name)
        return tuple(call for call in self.calls if call.name in found)

    def calls_in(self, loop: str) -> tuple[Call, ...]:
        """The calls of a `refill` block, in file order."""
        return tuple(call for call in self.calls if call.loop == loop)

    @contextmanager
    def looping(self, groups: int, max_rounds: int, at: Location) -> Generator[None]:
        """Record the calls that are made meanwhile as those of a `refill` block; one inside another is a problem."""
        if self._loop is not None:
            outer = self.loops[self._loop].at
            self.report(f"`refill` stands inside the `refill` at {outer}.", at=at, fix="put them one after the other")
            yield
            return
        name = self._free_name("refill")
        self.loops[name] = Refill(name, groups, max_rounds, at)
        self._loop = name
        try:
            yield
        finally:
            self._loop = None

    def __enter__(self) -> Pipeline:
        outer = _ACTIVE.get()
        if outer is not None:
            what = f"pipeline `{self.name}` is opened inside pipeline `{outer.name}`."
            fix = f"close `{outer.name}` first: pipelines stand side by side"
            raise PipelineFileError([Problem(what, caller_location(), fix=fix)])
        self._token = _ACTIVE.set(self)
        return self

    def __exit__(self, error: type[BaseException] | None, *rest: object) -> None:
        self.is_complete = error is None
        if self._token is not None:
            _ACTIVE.reset(self._token)
            self._token = None

    def report(self, what: str, *, at: Location | None = None, fix: str | None = None) -> None:
        """Keep a problem for the compiler."""
        self.problems.append(Problem(what, at or caller_location(), fix=fix))

    def add_call(self, node: Node[..., Any], args: tuple[Any, ...], kwargs: dict[str, Any]) -> Edge:
        """Record a call of ``node`` and return its edge; what is wrong with it is kept as problems."""
        contract, at = node.contract, caller_location()
        options = dict(kwargs)
        name = self._call_name(contract.name, options.pop("name", None), at)
        state = options.pop("state", None) if contract.state is not None else None
        edges, groups = self._sort_arguments(contract, args, at)
        self._check_misplaced(contract, options, at)
        self.problems += option_problems(contract.name, contract.options, options, at)
        if contract.state is not None and not isinstance(state, contract.state):
            self.report(
                f"`{contract.name}` keeps state, but got `state={state!r}`.",
                at=at,
                fix=f"pass its first value: `state={contract.state.__name__}(...)`",
            )
        group = self._one_group(contract, groups, at)
        call = Call(name, node, edges, group, options, state, at, len(self.graph), self._loop)
        self.graph.add_node(name, call=call)
        self.graph.add_edges_from((edge.call, name) for edge in edges)
        return Edge(self, name, {write.name: write.name for write in contract.writes})

    def _call_name(self, base: str, explicit: Any, at: Location) -> str:
        if explicit is not None and not (isinstance(explicit, str) and _CALL_NAME.fullmatch(explicit)):
            what = f"`{base}` got `name={explicit!r}`, which is no name."
            self.report(what, at=at, fix="pass a string of letters, digits, `_`, `-` and `.`")
        elif explicit is not None and explicit in self.graph:
            other = self.call(explicit).at
            self.report(f"two calls are named `{explicit}`; the other is at {other}.", at=at, fix="rename one of them")
        elif explicit is not None and explicit in self.loops:
            other = self.loops[explicit].at
            self.report(f"a call is named as the `refill` block at {other}.", at=at, fix="give another name")
        elif explicit is not None:
            return explicit
        return self._free_name(base)

    def _free_name(self, base: str) -> str:
        """The name, or with a number behind it where it is taken by a call or a block."""
        name, number = base, 2
        while name in self.graph or name in self.loops:
            name, number = f"{base}#{number}", number + 1
        return name

    def _sort_arguments(
        self, contract: NodeContract, args: tuple[Any, ...], at: Location
    ) -> tuple[tuple[Edge, ...], tuple[WorkerGroup, ...]]:
        edges: list[Edge] = []
        groups: list[WorkerGroup] = []
        for argument in args:
            if isinstance(argument, WorkerGroup):
                groups.append(argument)
            elif not isinstance(argument, Edge):
                passed = with_article(type(argument).__name__)
                what = f"`{contract.name}` was passed {passed} inside pipeline `{self.name}`."
                self.report(what, at=at, fix="here a node takes edges and one worker group; options go by keyword")
            elif argument.pipeline is not self:
                what = f"`{contract.name}` was passed an edge of pipeline `{argument.pipeline.name}`."
                self.report(what, at=at, fix=f"call `{argument.call}` again inside pipeline `{self.name}`")
            else:
                edges.append(argument)
        return tuple(edges), tuple(groups)

    def _check_misplaced(self, contract: NodeContract, options: dict[str, Any], at: Location) -> None:
        columns = {read.name for read in contract.reads}
        for name in [
            name for name, value in options.items() if name in columns or isinstance(value, Edge | WorkerGroup)
        ]:
            del options[name]
            what = f"`{contract.name}` was passed `{name}=` by keyword."
            self.report(what, at=at, fix="pass edges and the worker group by position; columns match by name")

    def _one_group(self, contract: NodeContract, groups: tuple[WorkerGroup, ...], at: Location) -> WorkerGroup | None:
        role = contract.role
        if role is None:
            for group in groups:
                what = f"`{contract.name}` runs on no model, but was passed worker group `{group.name}`."
                self.report(what, at=at, fix=f"drop `{group.name}` from the call")
            return None
        if len(groups) != 1:
            got = ", ".join(f"`{group.name}`" for group in groups) or "none"
            what = (
                f"`{contract.name}` runs on one worker group (`{role.parameter}: {role.protocol.__name__}`), got {got}."
            )
            self.report(what, at=at, fix=f"pass one: `{contract.name}(<worker group>, ...)`")
            return groups[0] if groups else None
        (group,) = groups
        if group.model.role is not role.protocol:
            wanted, got = with_article(role.protocol.__name__), with_article(group.model.role.__name__)
            what = f"`{contract.name}` needs {wanted}, `{group.name}` is {got} (made at {group.at})."
            fix = f"pass a worker group whose model is made by `{maker_of(role.protocol)}(...)`"
            self.report(what, at=at, fix=fix)
        return group
