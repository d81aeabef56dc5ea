"""What stands in the drawing at each node: its state, time, and rows or progress."""

from __future__ import annotations

from collections.abc import Mapping

from rich.text import Text

from dagrl.tui.canvas import Part, line
from dagrl.tui.formats import count, duration, of_duration
from dagrl.tui.glyphs import LABEL, LOOKS
from dagrl.tui.node_status import NodeStatus
from dagrl.tui.walk_state import Progress

#: Cells that the drawing keeps for the lines below a name.
RESERVE = 15


def box_labels(statuses: Mapping[str, NodeStatus]) -> dict[str, list[Text]]:
    """Three short lines for each node, the first as wide whatever its state is, so that the drawing stands still."""
    return {node: [_head(each), line(_time(each, "/")), _short(each)] for node, each in statuses.items()}


def list_labels(statuses: Mapping[str, NodeStatus]) -> dict[str, list[Text]]:
    """Three texts for each node of a list: its name, its time, and its rows or what it waits for."""
    return {node: [_head(each), line(_time(each, " of ")), _detail(each)] for node, each in statuses.items()}


def narrow_labels(statuses: Mapping[str, NodeStatus]) -> dict[str, list[Text]]:
    """As for a list, in fewer cells: the time without the usual one, and the most telling of the details."""
    return {node: [_head(each), line(_own_time(each)), _short(each)] for node, each in statuses.items()}


def _head(status: NodeStatus) -> Text:
    glyph, style = LOOKS[status.state]
    return line((f"{glyph} ", style), (status.name, style))


def _time(status: NodeStatus, between: str) -> Part:
    """What it took, what it has taken of the usual time, or what it usually takes."""
    if status.state == "running" and status.seconds is not None and status.usual is not None:
        return of_duration(status.seconds, status.usual, between), LOOKS["running"].style
    return _own_time(status)


def _own_time(status: NodeStatus) -> Part:
    """What it took or has taken; before that what it usually takes."""
    match status.state:
        case "running" | "stalled":
            return duration(status.seconds), LOOKS[status.state].style
        case "done" | "failed":
            return duration(status.seconds)
        case _:
            return (f"~{duration(status.usual)}", LABEL) if status.usual is not None else ""


def _short(status: NodeStatus) -> Text:
    """The most telling of the details."""
    if status.state == "done" and _rate(status):
        return line((_rate(status), LABEL))
    if status.state == "waiting" and _waits(status):
        return line((f"← {_waits(status)}", LABEL))
    return _detail(status)


def _detail(status: NodeStatus) -> Text:
    match status.state:
        case "running" if status.progress is not None:
            return line(_progress(status.progress))
        case "stalled":
            return line((f"usually {duration(status.usual)}", LOOKS["stalled"].style))
        case "done":
            rate = f" · {_rate(status)}" if _rate(status) else ""
            return line((f"{count(status.rows)} rows{rate}" if status.rows else "", LABEL))
        case "queued":
            return line((f"turn after {status.turn_of}" if status.turn_of else "ready", LABEL))
        case _:
            return line((f"waits: {_waits(status)}" if _waits(status) else "", LABEL))


def _waits(status: NodeStatus) -> str:
    """What is still missing, once something of it is there; before that the graph's lines say it all."""
    return "" if status.waits_for_all else ", ".join(status.waits_for)


def _rate(status: NodeStatus) -> str:
    if not status.tokens or not status.seconds:
        return ""
    return f"{count(status.tokens / status.seconds)} tok/s"


def _progress(progress: Progress) -> str:
    """`32/64 rows`: what counts first, as the rest may be cut; of a unit that explains itself the first word."""
    return f"{count(progress.done)}/{count(progress.total)} {progress.unit.partition(' ')[0]}"
