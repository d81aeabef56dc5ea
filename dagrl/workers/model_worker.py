"""What a process asks of the worker of any role, and the one place that makes a worker from its group's spec."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Protocol

from dagrl.engines.parallel import DataParallel
from dagrl.engines.state import StatePart, WorkerState
from dagrl.errors import DagrlError
from dagrl.graph.roles import Critic, Policy, RewardModel
from dagrl.graph.specs import WorkerGroup
from dagrl.workers.critic import CriticWorker
from dagrl.workers.policy import PolicyWorker
from dagrl.workers.reward_model import RewardModelWorker


class ModelWorker(Protocol):
    """One rank's part of a worker group: what it holds, what it adds to a checkpoint, and the model it exports."""

    group: WorkerGroup

    @property
    def weight_bytes(self) -> int:
        """Of the weights on this rank."""
        ...

    @property
    def optimizer_bytes(self) -> int:
        """Of the optimizer's state on this rank."""
        ...

    def state(self) -> WorkerState | None:
        """This rank's part of what a resumed run needs; None for a frozen model."""
        ...

    def load_state(self, parts: Sequence[StatePart]) -> None:
        """Go on from the parts of all ranks that saved."""
        ...

    def save(self, folder: Path) -> None:
        """Have rank 0 write the model in Hugging Face format."""
        ...


def make_worker(group: WorkerGroup, *, total_steps: int, rollout: bool, parallel: DataParallel) -> ModelWorker:
    """The worker of the group's role; ``rollout`` is for a policy that generates.

    Raises:
        ConfigError: when the model cannot be loaded, or does not fit the role.
    """
    role = group.model.role
    if role is Policy:
        return PolicyWorker(group, total_steps=total_steps, rollout=rollout, parallel=parallel)
    if role is Critic:
        return CriticWorker(group, total_steps=total_steps, parallel=parallel)
    if role is RewardModel:
        return RewardModelWorker(group, parallel=parallel)
    raise DagrlError(f"worker group `{group.name}` has the role {role.__name__}, of which there is no worker")
