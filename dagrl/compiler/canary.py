"""Canary pass: which updates are given rows of the very weights that they begin with, and may hold them against that.

Such rows are the first after each sync. Their log-probs by the rollout engine are the trainer's but for float noise;
not so where the engine could draw from some tokens only, where the trainer drops units out, or where another update has
changed the weights since the rows were drawn.
"""

from collections.abc import Iterator

from dagrl.compiler.plan import CanaryPlan
from dagrl.compiler.prune import Liveness
from dagrl.graph.pipeline import Call, Pipeline

#: The mean gap that is noise, in nats, by the lower of the precisions of trainer and rollout.
TOLERANCES = {"fp32": 0.01, "bf16": 0.1}
#: Sampling that leaves tokens out, unless it has these values.
_WHOLE = {"top_p": 1, "top_k": 0}
_COLUMN = "rollout_logprobs"


def canaries(pipeline: Pipeline, live: Liveness) -> dict[str, CanaryPlan]:
    """The canary of each live update that has one, by the update's name."""
    return {call.name: plan for call in live.calls for plan in _canary(pipeline, live, call)}


def _canary(pipeline: Pipeline, live: Liveness, call: Call) -> Iterator[CanaryPlan]:
    if "canary" not in call.contract.executor_keywords or call.group is None:
        return
    tolerance, origin = call.options["logprob_gap_tolerance"], live.reads[call.name].get(_COLUMN)
    if tolerance is None or origin is None:
        return
    writer = pipeline.call(origin.call)
    if writer.group is None or origin.column != _COLUMN or not _comparable(live, call, writer):
        return
    lower = "bf16" if "bf16" in (call.group.model.precision, writer.group.model.precision) else "fp32"
    yield CanaryPlan(writer.group.name, TOLERANCES[lower] if tolerance == "auto" else float(tolerance))


def _comparable(live: Liveness, call: Call, writer: Call) -> bool:
    """Whether both see one distribution."""
    if call.group is None or writer.group is None or writer.group.leader != call.group:
        return False
    changed = any(
        other.contract.mutates and other.group == call.group and writer.index < other.index < call.index
        for other in live.calls
    )
    whole = all(writer.options[name] == value for name, value in _WHOLE.items() if name in writer.options)
    return writer.contract.needs == "rollout" and not changed and whole and not call.group.model.dropout
