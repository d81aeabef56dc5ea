"""Lines of text as a picture that shows everywhere as it does on a dark terminal."""

import io
from collections.abc import Sequence

from rich.console import Console
from rich.text import Text

from dagrl.tui.text import cells

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


def svg(lines: Sequence[Text], title: str, unique_id: str) -> str:
    """The text of an SVG file with the lines below each other; the id keeps several on one page apart."""
    console = Console(
        record=True, file=io.StringIO(), width=max((cells(line.plain) for line in lines), default=1),
        color_system="truecolor", force_terminal=True, legacy_windows=False, no_color=False,
    )  # fmt: skip
    for line in lines:
        console.print(line, no_wrap=True, crop=False)
    return console.export_svg(title=title, code_format=_FORMAT, unique_id=unique_id)
