"""A step's graph as a list in the order of the plan, where it forks drawn as a tree: for narrow places."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import lru_cache

from rich.text import Text

from dagrl.tui.box_drawing import EDGE, append_fitted
from dagrl.tui.step_graph import StepGraph
from dagrl.tui.text import cells, cut, safe

_INDENT = 3
#: What a name keeps beside the tree lines, and the share of the width that both may take before details.
_LEAST_NAME = 8
_NAMES_SHARE = 0.6
_BETWEEN = "  "
_PARENT_CELLS = 24
#: In fewer cells than that no parent could be read.
_LEAST_PARENTS = 8


def draw_tree(graph: StepGraph, labels: Mapping[str, Sequence[Text]], width: int) -> list[Text]:
    """One line of exactly ``width`` cells for each node, in the order of the plan.

    Tree lines lead from a node to those that wait for it alone; other parents are named behind an arrow. Of a label the
    first line comes first, and the others follow, below each other from line to line.
    """
    most = int(width * _NAMES_SHARE)
    rows = _tree(graph, max((most - _LEAST_NAME) // _INDENT, 0))
    names = [cells(row.lead) + _name_cells(graph, index, labels) for index, row in enumerate(rows)]
    column = min(max(names, default=0), most)
    return [_line(graph, index, row, labels, column, width) for index, row in enumerate(rows)]


@dataclass(frozen=True)
class _Row:
    """What stands before a node, and behind it."""

    lead: str
    parents: str


@dataclass(eq=False)
class _Branch:
    """A column of nodes below a fork; ``nodes`` grows while the list is read from the top."""

    fork: str | None
    nodes: list[str]
    last_of_fork: bool = True


def _name_cells(graph: StepGraph, index: int, labels: Mapping[str, Sequence[Text]]) -> int:
    node = graph.nodes[index]
    return cells(labels[node.id][0].plain) + cells(graph.pool_tag(node))


def _line(
    graph: StepGraph, index: int, row: _Row, labels: Mapping[str, Sequence[Text]], column: int, width: int
) -> Text:  # fmt: skip
    node = graph.nodes[index]
    name, *details = labels[node.id]
    line = Text(no_wrap=True, end="")
    line.append(row.lead, EDGE)
    tag = graph.pool_tag(node)
    head = name.copy().append(tag, EDGE) if tag else name
    rest = Text()
    for detail in details:
        if detail.plain.strip():
            rest.append(_BETWEEN)
            rest.append_text(detail)
    if row.parents and width - column - cells(rest.plain) - len(_BETWEEN) >= min(_LEAST_PARENTS, cells(row.parents)):
        rest.append(_BETWEEN + row.parents, EDGE)
    taken = column if rest else width
    append_fitted(line, head, taken - cells(row.lead))
    append_fitted(line, rest, width - taken)
    return line


@lru_cache(64)
def _tree(graph: StepGraph, most_branches: int) -> tuple[_Row, ...]:
    """The tree lines and further parents of every node."""
    placed = _Forest(graph, most_branches).places()
    return tuple(_Row(_lead(node, stack), parents) for node, (stack, parents) in placed.items())


def _lead(node: str, stack: tuple[_Branch, ...]) -> str:
    parts: list[str] = []
    for branch in stack[1:]:
        if node == branch.nodes[0]:
            parts.append("└─ " if branch.last_of_fork else "├─ ")
        else:
            parts.append("   " if branch.last_of_fork else "│  ")
    return "".join(parts)


class _Forest:
    """Reads the nodes in order and keeps the branches that are still open, from the outermost to the innermost."""

    def __init__(self, graph: StepGraph, most_branches: int) -> None:
        self.graph = graph
        self.most_branches = most_branches
        self.open: list[_Branch] = [_Branch(None, [])]
        self.above = _dominators(graph)

    def places(self) -> dict[str, tuple[tuple[_Branch, ...], str]]:
        """For each node the branches it stands in, and the parents that the lines do not show."""
        found: dict[str, tuple[tuple[_Branch, ...], str]] = {}
        for node in self.graph.nodes:
            parents = self._add(node.id)
            found[node.id] = (tuple(self.open), parents)
        return found

    def _add(self, node: str) -> str:
        parents = self.graph.parents[node]
        if len(parents) == 1 and self._forks(parents[0]) and self._add_branch(parents[0], node):
            return ""
        depth = self._depth(node)
        del self.open[depth + 1 :]
        column = self.open[depth].nodes
        follows = bool(column) and parents == (column[-1],) and not self._forks(column[-1])
        first = not column and not parents
        column.append(node)
        return "" if follows or first else self._named(parents)

    def _forks(self, node: str) -> bool:
        """Whether several nodes wait for this one alone."""
        return sum(self.graph.parents[child] == (node,) for child in self.graph.children[node]) > 1

    def _add_branch(self, fork: str, node: str) -> bool:
        """Open a branch below the fork, if it is the latest of an open column and there is space for one more."""
        for depth, branch in enumerate(self.open):
            if branch.nodes and branch.nodes[-1] == fork and depth < self.most_branches:
                for earlier in self.open[depth + 1 : depth + 2]:
                    earlier.last_of_fork = False
                del self.open[depth + 1 :]
                self.open.append(_Branch(fork, [node]))
                return True
        return False

    def _depth(self, node: str) -> int:
        """The innermost open column with a node that all ways to this one lead through; else the outermost column."""
        ways = self.above[node]
        depths = [depth for depth, branch in enumerate(self.open) if ways & set(branch.nodes)]
        return max(depths, default=0)

    def _named(self, parents: Sequence[str]) -> str:
        names = [cut(safe(node.name), _PARENT_CELLS) for node in self.graph.nodes if node.id in parents]
        return f"← {', '.join(names) or 'nothing'}"


def _dominators(graph: StepGraph) -> dict[str, set[str]]:
    """For each node those that every way to it leads through."""
    found: dict[str, set[str]] = {}
    for node in graph.nodes:
        parents = graph.parents[node.id]
        through = [found[parent] | {parent} for parent in parents]
        found[node.id] = set.intersection(*through) if through else set()
    return found
