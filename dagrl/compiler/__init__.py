"""From a graph to a plan: check, prune, alias, schedule. Pure functions; no tensor, model or process.

A name is loaded when it is first asked for: who only reads a plan needs no graph.
"""

from importlib import import_module
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from dagrl.compiler.before_run import check_before_run
    from dagrl.compiler.compile import compile_pipelines
    from dagrl.compiler.machine import LOCAL, Machine
    from dagrl.compiler.plan import FreeOp, Input, LoopOp, Op, PhaseOp, Plan, RunOp, SyncOp, plan_from_dict

_HOME_OF = {
    "check_before_run": "before_run",
    "compile_pipelines": "compile",
    "LOCAL": "machine",
    "Machine": "machine",
    **dict.fromkeys(
        ("FreeOp", "Input", "LoopOp", "Op", "PhaseOp", "Plan", "RunOp", "SyncOp", "plan_from_dict"), "plan"
    ),
}

__all__ = [
    "LOCAL",
    "FreeOp",
    "Input",
    "LoopOp",
    "Machine",
    "Op",
    "PhaseOp",
    "Plan",
    "RunOp",
    "SyncOp",
    "check_before_run",
    "compile_pipelines",
    "plan_from_dict",
]


def __getattr__(name: str) -> object:
    if name not in _HOME_OF:
        raise AttributeError(f"module `{__name__}` has no attribute `{name}`")
    return vars(import_module(f"{__name__}.{_HOME_OF[name]}"))[name]


def __dir__() -> list[str]:
    return sorted([*globals(), *__all__])
