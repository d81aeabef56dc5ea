"""``@node``: a typed function that is a graph call inside a pipeline and a plain function outside."""

import functools
from collections.abc import Callable
from typing import Any, Generic, ParamSpec, TypeVar, overload

from dagrl.errors import PipelineFileError, Problem
from dagrl.graph.contract import NO_EXAMPLES, Check, Examples, Needs, NodeContract, Rows, Split
from dagrl.graph.pipeline import Edge, active_pipeline
from dagrl.graph.signature import node_contract
from dagrl.graph.source import by_name, caller_location
from dagrl.graph.specs import WorkerGroup

P = ParamSpec("P")
R = TypeVar("R")

#: Contracts of all nodes declared in this process, for messages that name who writes a column.
DECLARED: dict[str, NodeContract] = {}


class Node(Generic[P, R]):
    """A declared node; ``contract`` is what its signature says."""

    def __init__(self, function: Callable[P, R], contract: NodeContract) -> None:
        functools.update_wrapper(self, function)
        self.function = function
        self.contract = contract

    @overload
    def __call__(self, *inputs: Edge | WorkerGroup, **options: Any) -> Edge: ...
    @overload
    def __call__(self, *args: P.args, **kwargs: P.kwargs) -> R: ...
    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        """Add a call to the open pipeline, or run the function when none is open."""
        pipeline = active_pipeline()
        if pipeline is not None:
            return pipeline.add_call(self, args, kwargs)
        if any(isinstance(argument, Edge) for argument in (*args, *kwargs.values())):
            what = f"`{self.contract.name}` was given an edge, but no pipeline is open here."
            raise PipelineFileError([Problem(what, caller_location(), fix="move the call inside `with Pipeline(...)`")])
        return self.function(*args, **kwargs)

    def __repr__(self) -> str:
        return f"<node {self.contract.name}>"

    def __reduce__(self) -> str | tuple[Any, ...]:
        return by_name(self.function, self.contract.name) or (Node, (self.function, self.contract))


def node(
    *,
    writes: str | None = None,
    needs: Needs | None = None,
    mutates: bool = False,
    split: Split = "row",
    rows: Rows = "same",
    alias_of: str | None = None,
    check: Check | None = None,
    examples: Examples = NO_EXAMPLES,
) -> Callable[[Callable[P, R]], Node[P, R]]:
    """Declare a node; the function's signature is the rest of the contract.

    Args:
        writes: name of the one written column; several are the fields of a returned NamedTuple.
        needs: which weights a role node uses, "train" (default) or "rollout".
        mutates: the call changes its group's weights.
        split: how rows may be cut over workers; "group" never cuts a group, "batch" never cuts at all.
        rows: "filter" returns one flag for each row, "source" reads rows at ``positions`` of the data.
        alias_of: the engine output that equals the written column when nothing lies between.
        check: ``fn(call) -> list[str]``, refusals that become compile problems.
        examples: what `dagrl check` passes for options without a default, and as rows of columns of your own.

    Raises:
        ContractError: when the signature is no contract.
    """

    def declare(function: Callable[P, R]) -> Node[P, R]:
        contract = node_contract(
            function,
            writes=writes,
            needs=needs,
            mutates=mutates,
            split=split,
            rows=rows,
            alias_of=alias_of,
            check=check,
            examples=examples,
        )
        DECLARED[contract.name] = contract
        return Node(function, contract)

    return declare
