"""What a node's or loss's ``check=`` function sees of the call that it may refuse."""

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, replace
from typing import Any

from dagrl.graph.pipeline import Call, Origin, Pipeline
from dagrl.graph.specs import WorkerGroup


@dataclass(frozen=True)
class CallView:
    """A call as a check sees it: its options, its worker group and what lies upstream.

    ``is_step`` is true in the pipeline that trains, false in an evaluation. For a loss, ``options`` are the loss's own
    and the rest is that of the node that takes it.
    """

    name: str
    options: Mapping[str, Any]
    group: WorkerGroup | None
    is_step: bool
    _call: Call
    _pipeline: Pipeline

    @property
    def state(self) -> Any:
        """The first value of the call's own state; None of a node that keeps none."""
        return self._call.state

    def with_options(self, options: Mapping[str, Any]) -> "CallView":
        """The same call with other options: those of a loss that it takes."""
        return replace(self, options=options)

    def columns(self) -> frozenset[str]:
        """The columns that the edges passed in carry."""
        return frozenset(column for edge in self._call.inputs for column in edge.columns)

    def reads(self) -> frozenset[str]:
        """The columns that the call reads, those of its loss terms included, by the names of its own parameters."""
        return frozenset(read.name for read in self._call.reads())

    def writes(self) -> frozenset[str]:
        """The columns that the call writes."""
        return frozenset(write.name for write in self._call.contract.writes)

    def readers(self, column: str) -> list[str]:
        """The calls that cannot do without the column from this one; an optional read does not count."""
        written = Origin(self.name, column)
        required = [(call, read.name) for call in self._pipeline.calls for read in call.reads() if not read.optional]
        return [call.name for call, name in required if written in call.origins(name)]

    def trained(self) -> frozenset[WorkerGroup]:
        """The worker groups that a call of the pipeline trains."""
        return frozenset(
            call.group for call in self._pipeline.calls if call.contract.mutates and call.group is not None
        )

    def writers(self, column: str) -> "list[CallView]":
        """The calls that write what this one reads as ``column``."""
        writers = (self._pipeline.call(origin.call) for origin in self._call.origins(column))
        return [view(call, self._pipeline, is_step=self.is_step) for call in writers]

    def upstream(self) -> Iterator["CallView"]:
        """Every call that this one descends from, nearest first."""
        seen: set[str] = set()
        waiting = [edge.call for edge in self._call.inputs]
        while waiting:
            name = waiting.pop(0)
            if name not in seen:
                seen.add(name)
                call = self._pipeline.call(name)
                waiting += [edge.call for edge in call.inputs]
                yield view(call, self._pipeline, is_step=self.is_step)

    def upstream_option(self, option: str) -> Iterator[tuple[str, Any]]:
        """(call name, value) of an option wherever a call upstream has it."""
        for call in self.upstream():
            if option in call.options:
                yield call.name, call.options[option]


def view(call: Call, pipeline: Pipeline, *, is_step: bool) -> CallView:
    """The view of a call of the pipeline."""
    return CallView(call.name, call.options, call.group, is_step, call, pipeline)
