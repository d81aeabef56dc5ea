"""When a run will be over: from its last steps, evaluations and saves."""

from __future__ import annotations

from dagrl.tui.run_info import RunInfo
from dagrl.tui.state import RunState
from dagrl.tui.walk_state import Walk

#: From so many steps on, the slowest and fastest one do not count: a first step warms up.
_ENOUGH = 5


def step_seconds(state: RunState) -> float | None:
    """What a training step takes by its last ones; None before the first."""
    return _typical(state.recent_walks(state.training))


def seconds_left(state: RunState, info: RunInfo, now: float) -> float | None:
    """Seconds until the run is over; None before its first step, and when it is over."""
    step = step_seconds(state)
    if step is None or state.outcome is not None:
        return None
    steps = max(0, state.steps - state.step_done) * step
    evaluations = sum(_evaluating(state, info, name) for name in state.pipelines[1:])
    return max(0.0, steps + evaluations + _saving(state) - _done_of_walk(state, state.walk, now))


def _typical(seconds: tuple[float, ...]) -> float | None:
    if not seconds:
        return None
    counted = sorted(seconds)[1:-1] if len(seconds) >= _ENOUGH else seconds
    return sum(counted) / len(counted)


def _evaluating(state: RunState, info: RunInfo, pipeline: str) -> float:
    """Seconds of the evaluations that are still to come, that of the last step among them."""
    seconds = _typical(state.recent_walks(pipeline))
    if seconds is None:
        return 0.0
    done = state.evaluated_at.get(pipeline, [])
    every = info.every.get(pipeline) or (done[-1] - done[-2] if len(done) > 1 else 0)
    last = done[-1] if done else 0
    if every <= 0:
        return seconds if last < state.steps else 0.0
    due = state.steps // every - last // every
    return seconds * max(0, due + (1 if state.steps % every and last < state.steps else 0))


def _saving(state: RunState) -> float:
    """Seconds of the saves that are still to come, at the pace of the last two."""
    if len(state.saves_recent) < 2:
        return state.saves_recent[0].seconds if state.saves_recent else 0.0
    before, last = state.saves_recent
    every = last.step - before.step
    left = max(0, state.steps - last.step)
    return last.seconds * -(-left // every) if every > 0 else 0.0


def _done_of_walk(state: RunState, walk: Walk | None, now: float) -> float:
    """Seconds of the running walk that lie behind; no more than it usually takes."""
    if walk is None or walk.seconds is not None:
        return 0.0
    usual = _typical(state.recent_walks(walk.pipeline))
    return min(max(0.0, now - walk.started_at), usual) if usual is not None else 0.0
