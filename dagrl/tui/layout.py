"""Where the panels stand, by the size of the terminal and the training plan: nothing moves while a run goes on."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

from dagrl.tui.panels.dag import drawing_height
from dagrl.tui.run_info import RunInfo

Kind = Literal["full", "medium", "small"]
_LEAST_SIDE, _USUAL_SIDE, _MOST_SIDE = 32, 38, 72
_LEAST_DAG, _LEAST_SAMPLES = 12, 4
_MOST_DAG_WITHOUT_PLAN = 18
_LEAST_STEP = 8
_MEMORY = 6
_HEADER, _FOOTER = 1, 2
_NOTES = 4


@dataclass(frozen=True)
class Full:
    """Sizes of the full view, with borders. ``is_wide``: the graph takes the whole width, the curves stand below it.

    ``side`` is the width of the right column; ``top``, ``middle`` and ``bottom`` the heights of the rows of panels.
    """

    is_wide: bool
    side: int
    top: int
    middle: int
    bottom: int


def kind_of(width: int, height: int) -> Kind:
    """Which view fits."""
    if width >= 110 and height >= 32:
        return "full"
    return "medium" if width >= 72 and height >= 18 else "small"


def full_layout(info: RunInfo, width: int, height: int) -> Full:
    """The graph beside the curves where its drawing fits there, else above them, else as a list beside them."""
    body = height - _HEADER - _FOOTER
    side = min(_MOST_SIDE, max(_USUAL_SIDE, width * 3 // 10))
    middle = min(max(_LEAST_STEP, _num_lanes(info) + _NOTES + 2), body // 2 - 2)
    room = body - middle - _LEAST_SAMPLES
    beside = [(False, each) for each in range(side, _LEAST_SIDE - 1, -1)]
    for is_wide, each in (*beside, (True, side)):
        needed = drawing_height(info, info.training, width - 4 - (0 if is_wide else each), room - 2)
        if needed is not None:
            return _shared_out(is_wide, each, max(needed + 2, _LEAST_DAG), middle, body)
    top = min(max(_list_height(info), _LEAST_DAG), body - _LEAST_STEP - _LEAST_SAMPLES)
    return _shared_out(False, side, top, min(middle, body - top - _LEAST_SAMPLES), body)


def _list_height(info: RunInfo) -> int:
    """Of the panel with every node of a training step as a list."""
    graph = info.graph(info.training)
    return _MOST_DAG_WITHOUT_PLAN if graph is None else len(graph.nodes) + 2


def _shared_out(is_wide: bool, side: int, top: int, middle: int, body: int) -> Full:
    """What is left goes to the samples, at most a quarter; the rest of it to the two rows above."""
    left = body - top - middle
    bottom = max(_LEAST_SAMPLES, min(left, body // 4))
    spare = left - bottom
    more = 0 if is_wide else spare // 2
    return Full(is_wide, side, top + more, middle + spare - more, bottom)


def _num_lanes(info: RunInfo) -> int:
    """A lane for each op of a training step, and one for the rest."""
    graph = info.graph(info.training)
    return 7 if graph is None else len(graph.nodes) + 1
