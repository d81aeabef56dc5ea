"""What a view knows of a run before its first event, from its plans."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING

from dagrl.errors import counted

if TYPE_CHECKING:
    from dagrl.compiler.plan import Plan
    from dagrl.tui.run_info import RunInfo


def info_of(
    plans: Sequence[Plan], *, folder: str, resume: str = "", every: Mapping[str, int] | None = None, steers: bool
) -> RunInfo:
    """The facts; ``resume`` is the command that goes on, ``every`` the steps between evaluations by pipeline.

    ``steers`` says whether keys reach the run.
    """
    from dagrl.tui.run_info import RunInfo

    training = plans[0]
    models = dict.fromkeys(group.model for group in training.groups)
    return RunInfo(
        title=f"dagrl {training.pipeline}",
        models=tuple(models),
        executor=_where(training),
        folder=folder,
        plans=tuple(plans),
        resume=resume,
        every=every or {},
        steers=steers,
    )


def _where(plan: Plan) -> str:
    """``local``, or ``ray 2 workers``."""
    if plan.machine.executor == "local":
        return "local"
    return f"{plan.machine.executor} {counted(sum(pool.num_processes for pool in plan.pools), 'worker')}"
