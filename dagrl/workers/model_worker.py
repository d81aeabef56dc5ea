"""The workers of all roles, and the one place that makes one from its group's spec."""

from __future__ import annotations

from dagrl.engines.parallel import DataParallel
from dagrl.errors import DagrlError
from dagrl.graph.roles import Critic, Policy, RewardModel
from dagrl.graph.specs import WorkerGroup
from dagrl.workers.base import RoleWorker
from dagrl.workers.critic import CriticWorker
from dagrl.workers.policy import PolicyWorker
from dagrl.workers.reward_model import RewardModelWorker


def make_worker(
    group: WorkerGroup, *, total_steps: int, rollout: bool, parallel: DataParallel, seed: int = 0
) -> RoleWorker:
    """The worker of the group's role; ``rollout`` is for a policy that generates, ``seed`` for one from scratch.

    Raises:
        ConfigError: when the model cannot be loaded, or does not fit the role.
    """
    role = group.model.role
    if role is Policy:
        return PolicyWorker(group, total_steps=total_steps, rollout=rollout, parallel=parallel, seed=seed)
    if role is Critic:
        return CriticWorker(group, total_steps=total_steps, parallel=parallel)
    if role is RewardModel:
        return RewardModelWorker(group, parallel=parallel)
    raise DagrlError(f"worker group `{group.name}` has the role {role.__name__}, of which there is no worker")
