"""From a graph to a plan: check, prune, alias, schedule. Pure functions; no tensor, model or process."""

from dagrl.compiler.before_run import check_before_run
from dagrl.compiler.compile import compile_pipelines
from dagrl.compiler.machine import LOCAL, Machine
from dagrl.compiler.plan import FreeOp, Input, Op, Plan, RunOp, SyncOp, plan_from_dict

__all__ = [
    "LOCAL",
    "FreeOp",
    "Input",
    "Machine",
    "Op",
    "Plan",
    "RunOp",
    "SyncOp",
    "check_before_run",
    "compile_pipelines",
    "plan_from_dict",
]
