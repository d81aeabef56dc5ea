"""The drawing of a plan that nothing runs yet, as ``dagrl plan`` prints it."""

from rich.text import Text

from dagrl.compiler.plan import Plan
from dagrl.errors import counted
from dagrl.tui.box_drawing import draw
from dagrl.tui.step_graph import StepGraph, StepNode, alias_notes, pool_headings
from dagrl.tui.text import cells, cut, safe
from dagrl.tui.tree_drawing import draw_tree

_MOST_LINES = 60
_MOST_CELLS = 24
_NAME = "bold"
_DETAIL = "dim"
#: By what a node does: changes weights, runs a model, brings weights to another engine, repeats others, none of it.
_STYLES = {"train": "magenta", "model": "cyan", "sync": "yellow", "loop": "yellow", "plain": ""}


def plan_drawing(plan: Plan, width: int) -> list[Text]:
    """The plan's ops and which of them wait for which, in lines of at most ``width`` cells."""
    graph = StepGraph.from_plan(plan)
    labels = {node.id: _label(node) for node in graph.nodes}
    styles = {node.id: _STYLES[_kind(node)] for node in graph.nodes}
    reserve = {node: max(cells(line.plain) for line in lines) for node, lines in labels.items()}
    drawn = draw(graph, labels, width, _MOST_LINES, styles=styles, reserve=reserve)
    notes = [Text(cut(note, width), _DETAIL) for note in alias_notes(graph)]
    headings = [Text(cut(heading, width), _DETAIL) for heading in pool_headings(graph)]
    return [*headings, *(drawn or draw_tree(graph, labels, width)), *notes]


def _label(node: StepNode) -> list[Text]:
    lines = [Text(safe(node.name), f"{_NAME} {_STYLES[_kind(node)]}")]
    if node.kind == "run" and node.group is not None:
        lines.append(Text(cut(safe(node.group), _MOST_CELLS), _DETAIL))
        lines.append(Text(_weights(node), _DETAIL))
    if node.kind == "loop":
        groups, rounds = node.limits
        lines.append(Text(counted(groups, "group"), _DETAIL))
        lines.append(Text(f"max {counted(rounds, 'round')}", _DETAIL))
    return lines


def _weights(node: StepNode) -> str:
    """Which weights it uses, to which it changes them, and whether they are brought to the generating engine then."""
    version = node.version or 0
    change = f" → {_version(version + 1)}" if node.mutates else ""
    return f"{node.needs} {_version(version)}{change}{', sync' if node.syncs else ''}"


def _version(version: int) -> str:
    return f"v+{version}" if version else "v"


def _kind(node: StepNode) -> str:
    if node.kind in ("sync", "loop"):
        return node.kind
    return "train" if node.mutates else "plain" if node.group is None else "model"
