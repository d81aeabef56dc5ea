"""The machine that a plan is made for."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

if TYPE_CHECKING:  # a plan is read back without the graph
    from dagrl.graph.specs import ResourcePool


@dataclass(frozen=True)
class Machine:
    """An executor and the processes it can run.

    ``process_on_nodes`` are those of a pool that asks for as many as there are. ``limit`` bounds the processes of all
    pools together, as long as each pool has its own; None where pools share the processes there are. ``gpus`` is
    whether each process has a GPU.
    """

    executor: str
    process_on_nodes: tuple[int, ...]
    limit: int | None = None
    gpus: bool = False

    @property
    def num_processes(self) -> int:
        """The processes of a pool that asks for as many as there are."""
        return sum(self.process_on_nodes)

    def process_on_nodes_of(self, pool: ResourcePool) -> tuple[int, ...]:
        """The processes of a pool, by node."""
        return tuple(pool.process_on_nodes) if pool.num_processes else self.process_on_nodes


#: This process alone.
LOCAL = Machine("local", (1,))
