"""What the metrics of each call are named, so that two calls never write one name."""

from __future__ import annotations

from collections import Counter

from dagrl.data.columns import LEGEND
from dagrl.data.metrics import Metrics
from dagrl.errors import NodeError
from dagrl.graph.pipeline import Call
from dagrl.workers.deployment import Planned


def metric_prefixes(planned: Planned) -> dict[str, str]:
    """What each call's metrics begin with: its name, if its node or a column it writes comes twice.

    A call whose measured column another call turns into the same column, as a penalty does with rewards, counts
    as a part of the whole: it carries its name and the last of the chain does not. Of a column that is not measured
    itself, such as advantages, no call of a chain does.
    """
    runs = planned.plan.runs
    nodes = Counter(op.node for op in runs)
    measured = {op.call: _measured(planned.pipeline.call(op.call)) for op in runs}
    parts = {read.call for op in runs for read in op.reads if read.source in measured[op.call]}
    named = parts | _rivals(planned)
    return {op.call: f"{op.call}/" if nodes[op.node] > 1 or op.call in named else "" for op in runs}


def _rivals(planned: Planned) -> set[str]:
    """Calls that write a column which others write too, none of them from the other's."""
    runs = planned.plan.runs
    written = {op.call: {write.name for write in planned.pipeline.call(op.call).contract.writes} for op in runs}
    continued = {(read.call, read.source) for op in runs for read in op.reads if read.source in written[op.call]}
    ends = [(call, name) for call, names in written.items() for name in names if (call, name) not in continued]
    times = Counter(name for _, name in ends)
    return {call for call, name in ends if times[name] > 1}


def _measured(call: Call) -> list[str]:
    return [w.name for w in call.contract.writes if w.name in LEGEND and LEGEND[w.name].metric is not None]


class MetricsByCall:
    """The metrics of one walk; whatever order calls end in, they are merged in that of the plan."""

    def __init__(self, planned: Planned) -> None:
        self._prefixes = metric_prefixes(planned)
        self._parts: dict[str, Metrics] = {op.call: Metrics() for op in planned.plan.runs}
        self._reporters: dict[str, str] = {}

    def add(self, call: str, *parts: Metrics) -> None:
        """Keep what a call has reported, its own metrics and others of it; a call in a loop reports in every round.

        Raises:
            NodeError: when another call, or another part, reports a name too.
        """
        prefix = self._prefixes[call]
        seen: set[str] = set()
        for part in parts:
            named = Metrics({f"{prefix}{name}": metric for name, metric in part.items()})
            for name in named:
                first = self._reporters.setdefault(name, call)
                if first != call or name in seen:
                    what = f"`{call}` reports the metric `{name}`, which `{first}` reports already"
                    raise NodeError(f"{what}: rename it")
                seen.add(name)
            self._parts[call] = self._parts[call].merge(named)

    def merged(self) -> Metrics:
        """All of them, in the order of the plan."""
        values = {name: metric for part in self._parts.values() for name, metric in part.items()}
        return Metrics(values)
