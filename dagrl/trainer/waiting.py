"""Runs in which a model that could learn never does, told at their start."""

import logging

from dagrl.graph.pipeline import Pipeline

_LOG = logging.getLogger(__name__)
_WARMUP = "critic_warmup"


def warn_of_waiting(step: Pipeline, steps: int) -> None:
    """Warn of every call that waits for a critic in all of the run's steps."""
    for call in step.calls:
        waits = call.options.get(_WARMUP, 0)
        if waits >= steps:
            _LOG.warning(
                "`%s` has %s=%d and the run has %d steps: the critic learns, `%s` never does",
                call.name, _WARMUP, waits, steps, call.group.name if call.group is not None else "the policy",
            )  # fmt: skip
