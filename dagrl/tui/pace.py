"""How often frames are drawn: ten a second at most, and never so often that the view takes much of a core."""

from __future__ import annotations

import time

#: The share of one core that the view may take.
SHARE = 0.015
#: Seconds between two frames, at least and at most; the longest is for what changes with time alone.
SHORTEST, LONGEST = 0.1, 1.0
#: Even a frame that costs much is not waited for longer than this.
_MOST_WAIT = 2.0


class Pace:
    """Says when the next frame may be drawn, by what the ones before have cost this process."""

    def __init__(self) -> None:
        self._cpu = time.process_time()
        self._drawn = self._next = self._soonest = 0.0

    def drawn(self) -> None:
        """A frame was drawn; what was done since the last one counts as its cost."""
        cpu, now = time.process_time(), time.monotonic()
        self._soonest = now + SHORTEST
        self._next = now + min(max(SHORTEST, (cpu - self._cpu) / SHARE), _MOST_WAIT)
        self._cpu, self._drawn = cpu, now

    def wait(self, *, is_urgent: bool) -> float:
        """Seconds until a frame may be drawn; what the user has done is answered ``is_urgent``ly."""
        return max(0.0, (self._soonest if is_urgent else self._next) - time.monotonic())

    def until_idle(self) -> float:
        """Seconds until a frame is due though nothing has happened."""
        return max(0.0, max(self._drawn + LONGEST, self._next) - time.monotonic())
