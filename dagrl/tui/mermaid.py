"""Plans as a Mermaid flowchart, which Markdown viewers draw."""

from collections.abc import Iterator, Sequence

from dagrl.compiler.plan import Plan
from dagrl.tui.step_graph import StepGraph, StepNode, alias_notes
from dagrl.tui.text import cut, safe

_MOST_CELLS = 60
_SHAPES = {"run": ("[", "]"), "sync": ("([", "])"), "loop": ("{{", "}}")}
#: Characters that Mermaid or the HTML it makes give a meaning, even inside quotes.
_ENTITIES = str.maketrans({character: f"#{ord(character)};" for character in '#"`&<>\\*~'})


def mermaid_text(plans: Sequence[Plan]) -> str:
    """One flowchart with a subgraph for each pipeline, and inside one for each pool where there are several."""
    lines = ["flowchart LR"]
    for number, plan in enumerate(plans):
        lines += _pipeline(f"p{number}", plan)
    return "\n".join(lines) + "\n"


def _pipeline(prefix: str, plan: Plan) -> Iterator[str]:
    graph = StepGraph.from_plan(plan)
    ids = {node.id: f"{prefix}n{index}" for index, node in enumerate(graph.nodes)}
    yield f'  subgraph {prefix}["{_escaped(plan.pipeline)}"]'
    pools = list(dict.fromkeys(node.pool for node in graph.nodes))
    if len(pools) > 1:
        for number, pool in enumerate(pools):
            yield f'    subgraph {prefix}pool{number}["{_escaped(pool)} pool"]'
            yield from (f"      {_node(ids, node)}" for node in graph.nodes if node.pool == pool)
            yield "    end"
    else:
        yield from (f"    {_node(ids, node)}" for node in graph.nodes)
    yield from (f"    {ids[source]} --> {ids[target]}" for source, target in graph.edges)
    for number, ((_, provider), note) in enumerate(zip(graph.aliased, alias_notes(graph), strict=True)):
        yield f'    {prefix}a{number}["{_escaped(note)}"]'
        if provider in ids:
            yield f"    {prefix}a{number} -.- {ids[provider]}"
    yield "  end"


def _node(ids: dict[str, str], node: StepNode) -> str:
    where = f"<br/>{_escaped(node.group)}" if node.group is not None and node.kind == "run" else ""
    label = f'"{_escaped(node.name)}{where}"'
    left, right = _SHAPES[node.kind]
    return f"{ids[node.id]}{left}{label}{right}"


def _escaped(text: str) -> str:
    return cut(safe(text), _MOST_CELLS).translate(_ENTITIES)
