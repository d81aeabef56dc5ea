"""The whole picture: exactly as many lines of exactly as many cells as the terminal has."""

from __future__ import annotations

from rich.text import Text

from dagrl.tui.canvas import beside, fit, fit_all, join, line
from dagrl.tui.glyphs import FRAME, TITLE
from dagrl.tui.layout import full_layout, kind_of
from dagrl.tui.panels.dag import dag_panel, node_list, phase
from dagrl.tui.panels.footer import footer, help_panel
from dagrl.tui.panels.header import header
from dagrl.tui.panels.last_step import last_step_panel, step_bar, step_title
from dagrl.tui.panels.learning import learning_lines, learning_panel
from dagrl.tui.panels.memory import memory_panel
from dagrl.tui.panels.notices import failure_panel, notices
from dagrl.tui.panels.samples import latest_samples, mixed, sample_lines, samples_panel
from dagrl.tui.run_info import RunInfo
from dagrl.tui.state import RunState

_CURVES, _MOST_CURVES, _SAMPLES = 3, 6, 4


def frame(
    state: RunState,
    info: RunInfo,
    width: int,
    height: int,
    now: float,
    *,
    keys: bool = False,
    sample_page: int = 0,
) -> list[Text]:
    """The view at the time ``now``: ``height`` lines of ``width`` cells each.

    ``keys`` shows what every key does, ``sample_page`` turns the pages of the samples.
    """
    if width < 1 or height < 1:
        return []
    match kind_of(width, height):
        case "full":
            lines = _full(state, info, width, height, now, keys, sample_page)
        case "medium":
            lines = _medium(state, info, width, height, now, keys)
        case "small":
            lines = _small(state, info, width, height, now)
    return fit_all(lines, width, height)


def _full(
    state: RunState, info: RunInfo, width: int, height: int, now: float, keys: bool, page: int
) -> list[Text]:  # fmt: skip
    at = full_layout(info, width, height)
    left = width - at.side
    learning = (state, info, at.side)
    if at.is_wide:
        top = dag_panel(state, info, width, at.top, now)
        beside_step = learning_panel(*learning, at.middle, now)
    else:
        curves = learning_panel(*learning, at.top, now)
        top = beside(dag_panel(state, info, left, at.top, now), curves)
        beside_step = memory_panel(state, info, at.side, at.middle, now)
    middle = beside(last_step_panel(state, info, left, at.middle, now), beside_step)
    if not at.is_wide or keys or _has_failed(state):
        bottom = _bottom(state, info, width, at.bottom, now, keys, page)
    else:
        said = samples_panel(state, info, left, at.bottom, now, page)
        bottom = beside(said, memory_panel(state, info, at.side, at.bottom, now))
    return [*header(state, info, width, now)[:1], *top, *middle, *bottom, *_foot(state, info, width, now)]


def _bottom(
    state: RunState, info: RunInfo, width: int, height: int, now: float, keys: bool, page: int
) -> list[Text]:  # fmt: skip
    """What a person asked for, or has to see, or what the model said."""
    if keys:
        return help_panel(state, info, width, height)
    if _has_failed(state):
        return failure_panel(state, info, width, height, now)
    return samples_panel(state, info, width, height, now, page)


def _medium(state: RunState, info: RunInfo, width: int, height: int, now: float, keys: bool) -> list[Text]:
    """Rules instead of boxes: the list of nodes, three curves, the step as a bar, and what is left for samples."""
    head, foot = header(state, info, width, now), _foot(state, info, width, now)
    rest = height - len(head) - len(foot)
    if keys:
        return [*head, *help_panel(state, info, width, rest), *foot]
    inner = width - 2
    step = [step_bar(state, info, inner)]
    nodes = node_list(state, info, inner, max(1, rest - _CURVES - len(step) - 3), now)
    spare = 0 if _has_failed(state) else rest - _num_nodes(info, len(nodes)) - len(step) - _SAMPLES - 4
    curves = learning_lines(state, inner, max(_CURVES, spare), rows=1)
    sections = [(f"step DAG · {phase(state, info)}", nodes), ("learning", curves), (step_title(state), step)]
    lines = [each for title, block in sections for each in (_rule(title, width), *_indented(block))]
    more = rest - len(lines)
    if _has_failed(state) and more >= 3:
        lines += failure_panel(state, info, width, more, now)
    elif more >= 2:
        lines += [_rule("samples", width), *_indented(_samples(state, inner, more - 1))]
    return [*head, *fit_all(lines, width, rest), *foot]


def _small(state: RunState, info: RunInfo, width: int, height: int, now: float) -> list[Text]:
    """The header and the nodes, curves where there is room; the most pressing notice at the end."""
    head = header(state, info, width, now)[: max(1, height - 1)]
    told = notices(state, info, now)[:1] if height >= 8 else []
    rest = height - len(head) - len(told)
    nodes = node_list(state, info, width, max(0, rest), now)
    most = min(_MOST_CURVES, rest - max(_num_nodes(info, 0), len(nodes)) - 1)
    curves = [_rule("learning", width), *_indented(learning_lines(state, width - 1, most, rows=1))] if most > 0 else []
    return [*head, *fit_all(nodes, width, rest - len(curves)), *curves, *told]


def _foot(state: RunState, info: RunInfo, width: int, now: float) -> list[Text]:
    told = notices(state, info, now, is_failure_told=True)
    return [fit(told[0] if told else line(), width), footer(state, info, width, now)]


def _samples(state: RunState, width: int, height: int) -> list[Text]:
    rows = latest_samples(state)
    return sample_lines(mixed(rows.samples)[:height], width, height) if rows is not None else []


def _num_nodes(info: RunInfo, unknown: int) -> int:
    """Of a training step, so that nothing below them moves during an evaluation."""
    graph = info.graph(info.training)
    return len(graph.nodes) if graph is not None else unknown


def _has_failed(state: RunState) -> bool:
    return state.failure is not None or state.outcome == "failed"


def _indented(lines: list[Text]) -> list[Text]:
    return [join(line(" "), each) for each in lines]


def _rule(title: str, width: int) -> Text:
    return line(("─ ", FRAME), (title, TITLE), (f" {'─' * max(0, width - len(title) - 3)}", FRAME))
