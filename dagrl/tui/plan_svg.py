"""The drawings of plans as an SVG file."""

from collections.abc import Sequence

from rich.text import Text

from dagrl.compiler.plan import Plan
from dagrl.tui.plan_drawing import plan_drawing
from dagrl.tui.svg import svg
from dagrl.tui.text import cut, safe

_WIDTH = 160


def plan_svg(plans: Sequence[Plan]) -> str:
    """The drawings of the plans below each other, as the text of an SVG file."""
    lines: list[Text] = []
    for plan in plans:
        title = Text(cut(safe(f"pipeline {plan.pipeline}"), _WIDTH), "bold")
        lines += [*([Text()] if lines else []), title, Text(), *plan_drawing(plan, _WIDTH)]
    return svg(lines, "dagrl plan", "dagrl-plan")
