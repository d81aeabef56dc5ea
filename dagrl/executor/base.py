"""The executor: runs plans on process sets, keeps node states between steps, and tells subscribers what happens."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from dagrl.data.metrics import Metrics
from dagrl.errors import NodeError
from dagrl.executor.events import Event, Listener
from dagrl.executor.layout import SourceRows
from dagrl.executor.placement import Site
from dagrl.executor.process_sets import ProcessSet
from dagrl.executor.walk import Walk
from dagrl.workers.host import Planned

#: Seconds that an op may take unless the run says otherwise.
NODE_DEADLINE = 3600.0


class Executor:
    """Walks plans on process sets, one for each pool; whoever makes the sets decides where they are."""

    def __init__(
        self, planned: Sequence[Planned], by_pool: Mapping[str, ProcessSet], *, seed: int, deadline: float
    ) -> None:
        self.seed = seed
        self.site = Site(by_pool, seed, deadline)
        self._listeners: list[Listener] = []
        self._pools = {
            call.group.name: call.group.pool.name
            for one in planned
            for call in one.pipeline.calls
            if call.group is not None
        }
        self.states: dict[str, dict[str, Any]] = {
            one.pipeline.name: {
                call.name: call.state for call in one.pipeline.calls if call.contract.state is not None
            }
            for one in planned
        }

    def run(self, planned: Planned, step: int, sources: Mapping[str, SourceRows]) -> Metrics:
        """Walk the plan once; the metrics of all its calls."""
        return Walk(self.site, planned, step, sources, self.states[planned.pipeline.name], self.emit).run()

    def call_group(self, group: str, method: str, *arguments: Any) -> list[Any]:
        """Call a method of the processes that hold a worker group; what each of them returned."""
        on = self.site.by_pool[self._pools[group]]
        pending = on.call(method, [(group, *arguments)] * on.size)
        if on.first_done([pending], self.site.deadline) is None:
            what = f"`{method}` of worker group `{group}` has run for {self.site.deadline:g} s"
            raise NodeError(f"{what}, longer than an op may take")
        return pending.results()

    def export(self, group: str, folder: Path) -> None:
        """Write the trained model of a group in Hugging Face format."""
        self.call_group(group, "export", folder)

    def subscribe(self, listener: Listener) -> None:
        """Have every event from now on handed to ``listener``."""
        self._listeners.append(listener)

    def emit(self, event: Event) -> None:
        """Hand an event to the subscribers."""
        for listener in self._listeners:
            listener(event)

    def close(self) -> None:
        """End every process that was started, and what nodes have started in them."""
        for on in self.site.sets:
            on.close()
