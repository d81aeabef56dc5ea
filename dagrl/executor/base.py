"""The executor: runs plans on process sets, keeps node states between steps, and tells subscribers what happens."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import Any, Protocol

from dagrl.compiler import Machine, SyncOp
from dagrl.data.metrics import Metrics
from dagrl.executor.events import Event, Listener
from dagrl.executor.layout import Draw, SourceRows, no_more_rows
from dagrl.executor.placement import Site
from dagrl.executor.process_sets import Pending, ProcessSet
from dagrl.executor.walk import Walk
from dagrl.executor.weight_sync import Transfer, start_sync
from dagrl.storage.checkpoints import PartRecord
from dagrl.workers.deployment import Planned
from dagrl.workers.node_states import NODES, read_node_states, write_node_states
from dagrl.workers.state_parts import OpenPart

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
        self._follows = tuple(_follow_syncs(planned))
        self._followers_are_fed = False
        self.states: dict[str, dict[str, Any]] = {
            one.pipeline.name: {call.name: call.state for call in one.pipeline.calls if call.contract.state is not None}
            for one in planned
        }

    def run(self, planned: Planned, step: int, sources: Mapping[str, SourceRows], draw: Draw = no_more_rows) -> Metrics:
        """Walk the plan once; the metrics of all its calls.

        ``sources`` are the rows of every source that stands in no loop, and ``draw`` gives those of a loop's source for
        its next round. Before the first walk every group that follows another is given that one's weights.
        """
        if not self._followers_are_fed:
            self._feed_followers()
        states = self.states[planned.pipeline.name]
        return Walk(self.site, planned, step, sources, draw, states, self.emit).run()

    def export(self, group: str, url: str) -> None:
        """Write the trained model of a group in Hugging Face format."""
        self._call(self.site.by_pool[self._pools[group]], "export", group, url)

    def start_profile(self) -> None:
        """Begin a trace of every process."""
        self._on_all("start_profile")

    def stop_profile(self, folder_url: str) -> None:
        """End the traces, and have each process write its own into the folder, as ``POOL-RANK.json.gz``."""
        self._on_all("stop_profile", folder_url)

    def save_state(self, folder_url: str) -> list[PartRecord]:
        """Write what a resumed run needs of workers, nodes and random generators."""
        parts = [
            part for on in self.site.sets for of_rank in self._call(on, "save_state", folder_url) for part in of_rank
        ]
        return [*parts, write_node_states(folder_url, self.states)]

    def load_state(self, open_part: OpenPart, names: Sequence[str]) -> None:
        """Bring everything to what was saved; followers have their leaders' weights from the next walk on."""
        self._on_all("load_state", open_part, names)
        self._followers_are_fed = False
        self.states |= read_node_states(open_part(NODES), self.states)

    def _feed_followers(self) -> None:
        """Bring every group that follows another, and has no weights of its own, to those of that one."""
        for op in self._follows:
            self._wait(start_sync(self.site, op), op.id)
        self._followers_are_fed = True

    def _call(self, on: ProcessSet, method: str, *arguments: Any) -> list[Any]:
        """Call a method on all ranks alike; what each of them returned."""
        pending = on.call(method, [arguments] * on.size)
        self._done(on, pending, pending, method)
        return pending.results()

    def _on_all(self, method: str, *arguments: Any) -> None:
        for on in self.site.sets:
            self._call(on, method, *arguments)

    def _wait(self, transfer: Transfer, name: str) -> None:
        """Until a sync that stands in no plan is over."""
        self._done(transfer.sets[-1], transfer.taking, transfer.giving or transfer.taking, name)
        transfer.results()

    def _done(self, on: ProcessSet, pending: Pending, late: Pending, method: str) -> None:
        if on.first_done([pending], self.site.deadline) is None:
            error = late.expire(self.site.deadline)
            error.add_note(f"in `{method}`")
            raise error

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


def _follow_syncs(planned: Sequence[Planned]) -> Iterator[SyncOp]:
    """What brings every group that follows another to the weights of that one, where both are there."""
    groups = {group.name: group for one in planned for group in one.plan.groups}
    for group in groups.values():
        if group.follows is not None and group.follows in groups:
            pool, source = group.pool, groups[group.follows]
            yield SyncOp(f"sync:{group.name}", pool, group.name, 0, (), source=source.name, source_pool=source.pool)


class Runtime(Protocol):
    """Where executors come from: this process, or processes that are started or joined."""

    @property
    def machine(self) -> Machine:
        """What plans are made for."""
        ...

    def start(self, planned: Sequence[Planned], *, seed: int, total_steps: int) -> Executor:
        """An executor of the plans, its models loaded."""
        ...

    def close(self) -> None:
        """End what was started for executors; those themselves are closed before."""
        ...
