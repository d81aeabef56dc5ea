"""Frames are as rare as they are dear."""

import time

from dagrl.tui.pace import LONGEST, SHARE, SHORTEST, Pace


def burn(seconds: float) -> None:
    end = time.process_time() + seconds
    while time.process_time() < end:
        pass


def test_a_cheap_frame_is_followed_after_the_shortest_time() -> None:
    pace = Pace()
    assert pace.wait(is_urgent=False) == 0.0
    pace.drawn()
    assert 0.0 < pace.wait(is_urgent=False) <= SHORTEST
    assert pace.until_idle() <= LONGEST


def test_a_dear_frame_is_waited_for_but_not_by_the_user() -> None:
    pace = Pace()
    burn(0.01)
    pace.drawn()
    assert 0.005 / SHARE < pace.wait(is_urgent=False) <= 2.0
    assert pace.wait(is_urgent=True) <= SHORTEST
