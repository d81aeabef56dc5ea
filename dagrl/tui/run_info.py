"""What is known of a run before its first event: its name, models, plans, and how to go on with it."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import asdict, dataclass, field
from functools import cached_property
from typing import Any

from dagrl.compiler.plan import Plan, plan_from_dict
from dagrl.tui.step_graph import StepGraph


@dataclass(frozen=True)
class RunInfo:
    """A run as its view knows it from the start.

    ``executor`` says where it runs, such as "ray 2 workers"; ``plans`` are those of its pipelines, the training one
    first; ``resume`` is the command that goes on with it; ``every`` the steps between evaluations, by pipeline;
    ``steers`` says whether the view's keys reach the run; ``opened_at`` is when a live view began to wait for it;
    ``at`` is the step after which the run is shown as it was then.
    """

    title: str = "dagrl"
    models: tuple[str, ...] = ()
    executor: str = ""
    folder: str = ""
    plans: tuple[Plan, ...] = ()
    resume: str = ""
    every: Mapping[str, int] = field(default_factory=dict[str, int])
    steers: bool = True
    opened_at: float | None = None
    at: int | None = None

    def plan(self, pipeline: str) -> Plan | None:
        """The plan of a pipeline; None where it is not known."""
        return self._plans.get(pipeline)

    def graph(self, pipeline: str) -> StepGraph | None:
        """The nodes and edges of a pipeline's plan; None where it is not known."""
        return self._graphs.get(pipeline)

    @property
    def training(self) -> str:
        """The name of the training pipeline; empty where no plan is known."""
        return self.plans[0].pipeline if self.plans else ""

    @cached_property
    def _plans(self) -> dict[str, Plan]:
        return {plan.pipeline: plan for plan in self.plans}

    @cached_property
    def _graphs(self) -> dict[str, StepGraph]:
        return {name: StepGraph.from_plan(plan) for name, plan in self._plans.items()}

    def to_json(self) -> str:
        """The info as one line of JSON."""
        return json.dumps(asdict(self))

    @staticmethod
    def from_json(text: str) -> RunInfo:
        """The info that ``to_json`` wrote."""
        data: dict[str, Any] = json.loads(text)
        data["plans"] = tuple(plan_from_dict(plan) for plan in data["plans"])
        data["models"] = tuple(data["models"])
        return RunInfo(**data)
