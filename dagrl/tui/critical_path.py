"""What the length of a step is made of: the longest chain of data, ops taking turns, and the time between ops."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from dagrl.compiler.plan import FreeOp, LoopOp, Op, PhaseOp, Plan, SyncOp
from dagrl.tui.walk_state import Walk

#: Clocks of different events differ a little.
_ONE_AFTER_THE_OTHER = 0.99


@dataclass(frozen=True)
class Span:
    """When an op ran."""

    start: float
    end: float

    @property
    def seconds(self) -> float:
        """How long."""
        return max(0.0, self.end - self.start)


@dataclass(frozen=True)
class StepTime:
    """The parts of a step's time, in seconds.

    With processes of its own for every op the step would take its ``path``; ``slack`` is how much longer each other op
    could then take. ``turns`` is the time in which only ops beyond the path ran: some op of it waited for processes
    that they held, those of ``turn_pools``. ``between`` is the time in which no op ran.
    """

    seconds: float
    path: tuple[str, ...]
    path_seconds: float
    slack: Mapping[str, float]
    turns: float
    turn_pools: tuple[str, ...]
    between: float


def step_time(walk: Walk, plan: Plan) -> StepTime:
    """Where the time of a finished walk went."""
    spans = spans_of(walk, plan)
    seconds = walk.seconds if walk.seconds is not None else _extent(spans)
    path, path_seconds, slack = longest_path({op: span.seconds for op, span in spans.items()}, needs_of(plan))
    busy = covered(list(spans.values()))
    others = {pool for op in plan.ops if op.id in slack and spans[op.id].seconds > 0 for pool in _pools(op)}
    turns, between = max(0.0, busy - path_seconds), max(0.0, seconds - busy)
    return StepTime(seconds, path, path_seconds, slack, turns, tuple(sorted(others)), between)


def best_to_halve(spans: Mapping[str, Span], plan: Plan) -> tuple[str | None, float]:
    """The op that is best made twice as fast, and the seconds that the step is sure to save by that.

    Where ops only ever ran one after the other that is half of its time; else by how much the longest chain shrinks.
    """
    seconds = {op: span.seconds for op, span in spans.items()}
    if covered(list(spans.values())) >= sum(seconds.values()) * _ONE_AFTER_THE_OTHER:
        longest = max(seconds, key=lambda op: seconds[op], default=None)
        return longest, seconds[longest] / 2 if longest is not None else 0.0
    needs = needs_of(plan)
    path, length, _ = longest_path(seconds, needs)
    best, most = None, 0.0
    for op in sorted(path, key=lambda op: -seconds[op]):
        if seconds[op] / 2 <= most:
            break
        saved = length - longest_path({**seconds, op: seconds[op] / 2}, needs)[1]
        best, most = (op, saved) if saved > most else (best, most)
    return best, most


def spans_of(walk: Walk, plan: Plan) -> dict[str, Span]:
    """When each op of the plan ran, in the plan's order, a loop as one; without those that did not run."""
    spans: dict[str, Span] = {}
    syncs = list(walk.syncs)
    for op in plan.ops:
        if isinstance(op, SyncOp):
            sync = next((each for each in syncs if each.group == op.group), None)
            if sync is not None:
                syncs.remove(sync)
                spans[op.id] = Span(sync.started_at, sync.ended_at)
        elif isinstance(op, LoopOp):
            loop = walk.loops.get(op.id)
            ends = [run.ended_at for inner in op.ops if (run := walk.run_of(inner.id)) and run.ended_at is not None]
            if loop is not None and ends:
                spans[op.id] = Span(loop.started_at, max(ends))
        elif isinstance(op, PhaseOp):
            switch = walk.switches.get(op.id)
            if switch is not None:
                spans[op.id] = Span(switch.started_at, switch.ended_at)
        elif not isinstance(op, FreeOp):
            run = walk.run_of(op.id)
            if run is not None and run.ended_at is not None:
                spans[op.id] = Span(run.ended_at - run.seconds, run.ended_at)
    return spans


def _pools(op: Op) -> list[str]:
    """The pools that run an op."""
    match op:
        case FreeOp():
            return []
        case LoopOp():
            return [inner.pool for inner in op.ops]
        case _:
            return [op.pool]


def needs_of(plan: Plan) -> dict[str, tuple[str, ...]]:
    """The ops that each op needs to be done before it."""
    return {op.id: op.after for op in plan.ops}


def longest_path(
    seconds: Mapping[str, float], needs: Mapping[str, Sequence[str]]
) -> tuple[tuple[str, ...], float, dict[str, float]]:
    """The longest chain, its length, and the slack of every op beyond it.

    ``needs`` is in an order that respects it; its ops without ``seconds``, such as frees, take none and are not named.
    """
    before: dict[str, float] = {}
    chosen: dict[str, str | None] = {}
    for op, needed in needs.items():
        chosen[op] = max(needed, key=lambda each: before[each] + seconds.get(each, 0.0), default=None)
        last = chosen[op]
        before[op] = 0.0 if last is None else before[last] + seconds.get(last, 0.0)
    after = _after(seconds, needs)
    last = max(needs, key=lambda op: before[op] + seconds.get(op, 0.0), default=None)
    length = 0.0 if last is None else before[last] + seconds.get(last, 0.0)
    path: list[str] = []
    while last is not None:
        path.append(last)
        last = chosen[last]
    named = tuple(op for op in reversed(path) if op in seconds)
    slack = {op: max(0.0, length - before[op] - seconds[op] - after[op]) for op in seconds if op not in named}
    return named, length, slack


def covered(spans: Sequence[Span]) -> float:
    """Seconds in which at least one of them ran."""
    total, end = 0.0, float("-inf")
    for span in sorted(spans, key=lambda each: each.start):
        total += max(0.0, span.end - max(end, span.start))
        end = max(end, span.end)
    return total


def _after(seconds: Mapping[str, float], needs: Mapping[str, Sequence[str]]) -> dict[str, float]:
    """The longest chain behind each op."""
    after = dict.fromkeys(needs, 0.0)
    for op in reversed(list(needs)):
        for needed in needs[op]:
            after[needed] = max(after[needed], after[op] + seconds.get(op, 0.0))
    return after


def _extent(spans: Mapping[str, Span]) -> float:
    """From the first start to the last end."""
    if not spans:
        return 0.0
    return max(span.end for span in spans.values()) - min(span.start for span in spans.values())
