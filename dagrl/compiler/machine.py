"""The machine that a plan is made for."""

from dataclasses import dataclass


@dataclass(frozen=True)
class Machine:
    """An executor and the processes it can run, by node."""

    executor: str
    process_on_nodes: tuple[int, ...]

    @property
    def num_processes(self) -> int:
        """All processes."""
        return sum(self.process_on_nodes)


#: This process alone.
LOCAL = Machine("local", (1,))
