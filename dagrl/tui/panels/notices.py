"""What a person has to know now: failures, stalls, pauses, requests to stop, warnings."""

from __future__ import annotations

from rich.text import Text

from dagrl.tui.canvas import Part, box, line
from dagrl.tui.formats import duration
from dagrl.tui.glyphs import ERROR, LABEL, LOOKS, WARNING
from dagrl.tui.node_status import NodeStatus, statuses, waiting_for
from dagrl.tui.run_info import RunInfo
from dagrl.tui.state import RunState
from dagrl.tui.text import safe, safe_lines


def notices(state: RunState, info: RunInfo, now: float, *, is_failure_told: bool = False) -> list[Text]:
    """Each notice as a line, the most pressing first; without the failure where a panel tells of it."""
    found: list[Part] = []
    if is_failure_told:
        pass
    elif state.failure is not None:
        found.append((f"✗ {safe(state.failure.op)} failed in step {state.failure.step}: {_first_line(state)}", ERROR))
    elif state.outcome == "failed":
        found.append(("✗ the run failed outside of its nodes", ERROR))
    stalled = {node: each for node, each in statuses(state, info, now).items() if each.state == "stalled"}
    found += [(_stall(each, state, info, now), LOOKS["stalled"].style) for each in stalled.values()]
    if state.outcome is None and state.paused:
        found.append((f"‖ paused before step {state.step_done + 1}", LOOKS["paused"].style))
    if state.outcome is None and state.pause_asked:
        found.append(("‖ pauses after this step; p takes it back", LOOKS["paused"].style))
    if state.outcome is None and state.stopping_by is not None:
        found.append((f"■ stops after this step, saved ({safe(state.stopping_by)})", WARNING))
    if state.last_warning:
        found.append((f"! {safe(state.last_warning)}", WARNING))
    return [line(each) for each in found]


def failure_panel(state: RunState, info: RunInfo, width: int, height: int, now: float) -> list[Text]:
    """The node that failed, the first lines of its error, and how to go on, in a box."""
    failure = state.failure
    if failure is None:
        lines = [line("the run failed outside of its nodes; its error is printed when this view closes")]
        return box("failed", [*lines, *_resume(info)], width, height)
    room = max(1, height - 2 - len(_resume(info)))
    texts = safe_lines(failure.error, room)
    error = [line((text, ERROR if index == 0 else "")) for index, text in enumerate(texts)]
    more = [line(("the whole error is printed when this view closes", LABEL))] if info.steers else []
    more = more if len(error) < room else []
    title = f"{safe(failure.op)} failed · {safe(failure.pipeline)}, step {failure.step}{_place(state, info)}"
    return box(title, [*error, *more, *_resume(info)], width, height)


def _place(state: RunState, info: RunInfo) -> str:
    """Where the call of the node that failed is written."""
    failure = state.failure
    plan = info.plan(failure.pipeline) if failure is not None else None
    if failure is None or plan is None:
        return ""
    return next((f" · {safe(op.at)}" for op in plan.runs if op.id == failure.op), "")


def _resume(info: RunInfo) -> list[Text]:
    return [line(("go on with  ", LABEL), safe(info.resume))] if info.resume else []


def _first_line(state: RunState) -> str:
    lines = safe_lines(state.failure.error, 1) if state.failure is not None else []
    return lines[0] if lines else "without a message"


def _stall(stalled: NodeStatus, state: RunState, info: RunInfo, now: float) -> str:
    """How long it takes, who is behind, and who waits."""
    waiting = waiting_for(statuses(state, info, now), stalled.name)
    waits = f"; {', '.join(waiting)} wait{'s' if len(waiting) == 1 else ''} for it" if waiting else ""
    behind = f", {stalled.slowest}" if stalled.slowest else ""
    taken = f"runs for {duration(stalled.seconds)}, usually {duration(stalled.usual)}"
    return f"! {stalled.name} stalls: {taken}{behind}{waits}"
