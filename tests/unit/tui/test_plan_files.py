"""Plans as Mermaid and as SVG: structure, and names that try to break out of it."""

import re
from dataclasses import replace
from xml.etree import ElementTree

import pytest
from rich.cells import cell_len
from unit.tui.step_graphs import plan_of, run_op

from dagrl.compiler import SyncOp
from dagrl.compiler.plan import GroupPlan
from dagrl.tui.mermaid import mermaid_text
from dagrl.tui.plan_drawing import plan_drawing
from dagrl.tui.plan_svg import plan_svg

HOSTILE = [
    'a"] --> b["', "x\ny", "\x1b[31mred\x1b[0m", "<script>&amp;", "#quot;", "`md`", "\u202eback", "\x00\ud800",
    "界" * 40, "[bold]not markup[/bold]", "end", "%% comment", "x" * 100_000, "e\u0301\u0301", "",
]  # fmt: skip


def update_plan(pipeline: str = "grpo"):
    update = run_op("update", ["a"], group="actor", needs="train", version=0, mutates=True, aliases={"old": "new"})
    sync = SyncOp("sync:actor@v+1", "main", "actor", 1, ("update",))
    again = run_op("again", ["sync:actor@v+1"], group="actor", needs="rollout", version=1)
    plan = plan_of(
        run_op("a"), update, sync, again, pipeline=pipeline, groups=[GroupPlan("actor", "m", "main", True, "bf16")]
    )
    return replace(plan, aliased={"old": "from `update`"})


def test_mermaid_has_a_subgraph_for_each_pipeline() -> None:
    assert (
        mermaid_text([update_plan(), plan_of(run_op("b"), pipeline="eval")])
        == """\
flowchart LR
  subgraph p0["grpo"]
    p0n0["a"]
    p0n1["update<br/>actor"]
    p0n2(["sync actor"])
    p0n3["again<br/>actor"]
    p0n0 --> p0n1
    p0n1 --> p0n2
    p0n2 --> p0n3
    p0a0["old = update's own forward (alias)"]
    p0a0 -.- p0n1
  end
  subgraph p1["eval"]
    p1n0["b"]
  end
"""
    )


def test_mermaid_has_a_subgraph_for_each_pool_of_several() -> None:
    plan = plan_of(run_op("a"), run_op("b", ["a"], pool="side"), run_op("c", ["b"]), pools=("main", "side"))
    assert (
        mermaid_text([plan])
        == """\
flowchart LR
  subgraph p0["p"]
    subgraph p0pool0["main pool"]
      p0n0["a"]
      p0n2["c"]
    end
    subgraph p0pool1["side pool"]
      p0n1["b"]
    end
    p0n0 --> p0n1
    p0n1 --> p0n2
  end
"""
    )


@pytest.mark.parametrize("name", HOSTILE)
def test_no_name_breaks_out_of_mermaid(name: str) -> None:
    plan = plan_of(
        run_op(name, group=name, pool=name, needs="train"), run_op("z", [name]), pipeline=name, pools=(name, "main")
    )
    lines = mermaid_text([plan]).splitlines()
    patterns = [
        r"flowchart LR",
        r"  subgraph p0\[LABEL\]",
        r"    subgraph p0pool0\[LABEL\]",
        r"      p0n0\[LABEL\]",
        r"    end",
        r"    subgraph p0pool1\[LABEL\]",
        r"      p0n1\[LABEL\]",
        r"    end",
        r"    p0n0 --> p0n1",
        r"  end",
    ]
    label = r'"(?:[^"<>&#`\\\x00-\x1f\u202e]|#\d+;|<br/>)*"'
    assert len(lines) == len(patterns)
    for line, pattern in zip(lines, patterns, strict=True):
        assert re.fullmatch(pattern.replace("LABEL", label), line), line


def texts_of(svg: str) -> str:
    root = ElementTree.fromstring(svg)
    return "\n".join(
        "".join(element.itertext()).replace("\xa0", " ") for element in root.iter() if element.tag.endswith("}text")
    )


def test_svg_shows_every_name_of_every_pipeline_and_loads_nothing() -> None:
    svg = plan_svg([update_plan(), plan_of(run_op("held_out"), pipeline="eval")])
    shown = texts_of(svg)
    for name in (
        "pipeline grpo",
        "update",
        "again",
        "sync actor",
        "old = update's own forward",
        "pipeline eval",
        "held_out",
    ):
        assert name in shown
    assert shown.index("pipeline grpo") < shown.index("pipeline eval")
    assert re.findall(r"https?://[^\s\"]+", svg) == ["http://www.w3.org/2000/svg"]


@pytest.mark.parametrize("name", HOSTILE)
def test_no_name_breaks_svg_or_drawing(name: str) -> None:
    plan = plan_of(
        run_op(name, group=name, needs="train"),
        run_op("z", [name]),
        pipeline=name,
        groups=[GroupPlan(name, name, "main", True, "bf16")],
    )
    assert "z" in texts_of(plan_svg([plan]))
    for width in (20, 40, 100):
        for line in plan_drawing(plan, width):
            assert cell_len(line.plain) <= width
            assert not re.search(r"[\x00-\x1f\x7f-\x9f\u200e\u200f\u202a-\u202e\u2066-\u2069\ud800-\udfff]", line.plain)


def test_a_narrow_plan_is_a_list() -> None:
    assert [line.plain.rstrip() for line in plan_drawing(update_plan(), 33)] == [
        "main pool · 1 process · actor",
        "a",
        "update      actor  train v → v+1",
        "sync actor",
        "again       actor  rollout v+1",
        "old = update's own forward (alia…",
    ]
