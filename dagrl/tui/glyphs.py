"""What a state looks like: a glyph and a colour, so that it can be read without the colour.

Colours are names that each terminal's own theme makes readable on its background, dark or light.
"""

from typing import Literal, NamedTuple

State = Literal["waiting", "queued", "running", "stalled", "done", "aliased", "failed", "paused"]


class Look(NamedTuple):
    """A glyph, one cell wide, and the style of it and of what it stands before."""

    glyph: str
    style: str


LOOKS: dict[State, Look] = {
    "waiting": Look("·", "dim"),
    "queued": Look("○", ""),
    "running": Look("●", "bold cyan"),
    "stalled": Look("!", "bold yellow"),
    "done": Look("✓", "green"),
    "aliased": Look("=", "dim"),
    "failed": Look("✗", "bold red"),
    "paused": Look("‖", "bold yellow"),
}

LABEL = "dim"
TITLE = "bold"
FRAME = "dim"
CURVE = "cyan"
WARNING = "yellow"
ERROR = "bold red"
KEY = "bold"
