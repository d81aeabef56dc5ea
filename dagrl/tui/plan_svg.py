"""The drawings of plans as an SVG file."""

import io
from collections.abc import Sequence

from rich.console import Console
from rich.text import Text

from dagrl.compiler.plan import Plan
from dagrl.tui.plan_drawing import plan_drawing
from dagrl.tui.text import cells, cut, safe

_WIDTH = 160
_ID = "dagrl-plan"
#: Rich's own format loads a font from the network; this one takes what the reader has.
_FORMAT = """\
<svg viewBox="0 0 {width} {height}" xmlns="http://www.w3.org/2000/svg">
<style>
.{unique_id}-matrix {{ font-family: monospace; font-size: {char_height}px; line-height: {line_height}px; }}
.{unique_id}-title {{ font-family: sans-serif; font-size: 18px; font-weight: bold; }}
{styles}
</style>
<defs>
<clipPath id="{unique_id}-clip-terminal">
<rect x="0" y="0" width="{terminal_width}" height="{terminal_height}"/>
</clipPath>
{lines}
</defs>
{chrome}
<g transform="translate({terminal_x}, {terminal_y})" clip-path="url(#{unique_id}-clip-terminal)">
{backgrounds}
<g class="{unique_id}-matrix">
{matrix}
</g>
</g>
</svg>
"""


def plan_svg(plans: Sequence[Plan]) -> str:
    """The drawings of the plans below each other, as the text of an SVG file."""
    lines: list[Text] = []
    for plan in plans:
        title = Text(cut(safe(f"pipeline {plan.pipeline}"), _WIDTH), "bold")
        lines += [*([Text()] if lines else []), title, Text(), *plan_drawing(plan, _WIDTH)]
    console = Console(
        record=True, file=io.StringIO(), width=max((cells(line.plain) for line in lines), default=1),
        color_system="truecolor", force_terminal=True, legacy_windows=False,
    )  # fmt: skip
    for line in lines:
        console.print(line, no_wrap=True, crop=False)
    return console.export_svg(title="dagrl plan", code_format=_FORMAT, unique_id=_ID)
