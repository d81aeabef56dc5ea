"""What every process of a run knows: its pipelines, their plans and the worker groups in them."""

from __future__ import annotations

from dataclasses import dataclass, replace

from dagrl.compiler.plan import Plan
from dagrl.engines.parallel import Strategy
from dagrl.graph.pipeline import Pipeline
from dagrl.graph.specs import WorkerGroup


@dataclass(frozen=True)
class Planned:
    """A pipeline and its plan."""

    pipeline: Pipeline
    plan: Plan


@dataclass(frozen=True)
class Deployment:
    """What every process of a run knows: the pipelines with their plans, the seed, and the steps of the schedule."""

    planned: tuple[Planned, ...]
    seed: int
    total_steps: int

    def groups(self) -> dict[str, WorkerGroup]:
        """The worker groups that some plan runs a call on; nothing of a pruned group is loaded.

        One whose leader no call runs on, and whose weights therefore never change, follows nobody.
        """
        calls = [one.pipeline.call(op.call) for one in self.planned for op in one.plan.runs]
        found = {call.group.name: call.group for call in calls if call.group is not None}
        return {name: group if group.leader.name in found else _alone(group) for name, group in found.items()}

    def pools(self) -> tuple[str, ...]:
        """The pools that some op runs on."""
        return tuple(dict.fromkeys(op.pool for one in self.planned for op in one.plan.runs))

    def strategy(self, group: str) -> Strategy:
        """How the ranks of a group share its model."""
        return next(plan.parallel for one in self.planned for plan in one.plan.groups if plan.name == group)

    def generates(self, group: str) -> bool:
        """Whether some op samples with the group's rollout weights."""
        return any(op.group == group and op.needs == "rollout" for one in self.planned for op in one.plan.runs)


def _alone(group: WorkerGroup) -> WorkerGroup:
    """It is not offloaded, as no plan would bring the weights of a group that follows another."""
    return WorkerGroup(group.name, replace(group.model, offload=False), pool=group.pool)
