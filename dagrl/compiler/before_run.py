"""The last checks of a run, which planning leaves out since they may start processes: of the calls that will run."""

from collections.abc import Sequence

from dagrl.compiler.check import in_file_order
from dagrl.compiler.check_refusals import before_run_problems
from dagrl.compiler.plan import Plan
from dagrl.errors import CompileError
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
    problems = [problem for of_one in found.values() for problem in of_one]
    if problems:
        raise CompileError(in_file_order(problems), ",".join(name for name, of_one in found.items() if of_one))
