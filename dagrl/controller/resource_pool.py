"""Which nodes have how many processes."""

from collections.abc import Sequence

from dagrl.errors import ClusterError, Problem


class ResourcePool:
    """Processes by node: ``process_on_nodes=[8, 8]`` is two nodes of eight processes, one on each device.

    ``max_colocate_count`` bounds the worker groups that share the processes' devices.
    """

    def __init__(
        self,
        process_on_nodes: Sequence[int] | None = None,
        max_colocate_count: int = 10,
        n_gpus_per_node: int = 8,
    ) -> None:
        self._store = list(process_on_nodes or [])
        self.max_colocate_count = max_colocate_count
        self.n_gpus_per_node = n_gpus_per_node
        wrong = [count for count in [*self._store, max_colocate_count] if type(count) is not int or count < 1]
        if wrong:
            what = f"a resource pool has process_on_nodes={self._store} and max_colocate_count={max_colocate_count}."
            raise ClusterError([Problem(what, fix="give whole numbers of at least 1")])

    def add_node(self, process_count: int) -> None:
        """Add a node with this many processes."""
        self._store.append(process_count)

    @property
    def world_size(self) -> int:
        """All processes."""
        return sum(self._store)

    @property
    def store(self) -> list[int]:
        """The processes of each node."""
        return self._store

    def local_world_size_list(self) -> list[int]:
        """For each rank, how many processes its node has."""
        return [count for count in self._store for _ in range(count)]

    def local_rank_list(self) -> list[int]:
        """For each rank, its place on its node."""
        return [place for count in self._store for place in range(count)]
