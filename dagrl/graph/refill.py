"""``refill``: the block of a pipeline that draws prompts round after round, until enough groups pass its filters."""

from __future__ import annotations

from collections.abc import Generator
from contextlib import AbstractContextManager, contextmanager

from dagrl.errors import Location, PipelineFileError, Problem
from dagrl.graph.options import type_fault
from dagrl.graph.pipeline import Pipeline, active_pipeline
from dagrl.graph.source import caller_location


def refill(*, groups: int, max_rounds: int = 4) -> AbstractContextManager[None]:
    """Dynamic sampling (DAPO, arXiv 2503.14476): repeat the calls of the block until ``groups`` groups have passed.

    Around ``prompts``, ``generate``, a reward and at least one filter: ``with refill(groups=64, max_rounds=4):``. Each
    round reads the next ``batch_size`` prompts of the data. Inside the block edges carry the rows of the round; after
    it, those of all rounds that passed every filter of the block, of the ``groups`` lowest group ids. A group of which
    a filter keeps some rows counts.

    After ``max_rounds`` rounds the step trains on what there is, with a warning; on no row at all, updates are skipped
    and counted (``skipped_updates``). The metrics are ``refill/rounds``, ``refill/groups_kept``,
    ``refill/groups_dropped`` (by filters), ``refill/groups_left_over`` (passed, beyond ``groups``) and ``refill/short``
    (1 where there were too few). Those of nodes inside cover the rows of all rounds, kept or not.

    Raises:
        PipelineFileError: where no pipeline is open.
    """
    at, pipeline = caller_location(), active_pipeline()
    if pipeline is None:
        what = "`refill` stands outside a pipeline."
        raise PipelineFileError([Problem(what, at, fix="move the block inside `with Pipeline(...)`")])
    for name, value in (("groups", groups), ("max_rounds", max_rounds)):
        if type_fault(value, int) is not None or value < 1:
            pipeline.report(f"`refill` got {name}={value!r}.", at=at, fix="give a whole number, at least 1")
    return _block(pipeline, groups, max_rounds, at)


@contextmanager
def _block(pipeline: Pipeline, groups: int, max_rounds: int, at: Location) -> Generator[None]:
    with pipeline.looping(groups, max_rounds, at):
        yield
