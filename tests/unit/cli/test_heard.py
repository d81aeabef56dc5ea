"""Warnings are heard, whoever makes them, and go where they went."""

import logging
import subprocess
import sys

from support import ROOT

from dagrl.cli.heard import Heard

SCRIPT = """
import logging, warnings
from dagrl.cli.heard import Heard
heard = Heard()
heard.start()
logging.getLogger("a").warning("one %d", 1)
warnings.warn("two")
alone = logging.getLogger("b")
alone.propagate = False
alone.addHandler(logging.StreamHandler())
alone.error("three")
logging.getLogger("c").info("nothing")
texts = heard.take()
assert [text.split(": ", 1)[-1] for text in texts] == ["one 1", "UserWarning: two", "three"], texts
heard.stop()
warnings.warn("four")
assert heard.take() == []
"""


def test_warnings_are_heard_and_still_reach_stderr() -> None:
    done = subprocess.run([sys.executable, "-c", SCRIPT], capture_output=True, text=True, cwd=ROOT, timeout=60)
    assert done.returncode == 0, done.stderr
    lines = done.stderr.splitlines()
    assert "one 1" in lines
    assert "three" in lines
    assert any("UserWarning: two" in line for line in lines)
    assert "nothing" not in done.stderr


def test_of_many_the_first_are_kept_and_arguments_may_be_anything() -> None:
    class Odd:
        def __str__(self) -> str:
            raise ValueError("no text")

    heard = Heard()
    heard.start()
    try:
        logger = logging.Logger("library")
        logger.warning("odd %s", Odd())
        for number in range(30):
            logger.warning("number %d", number)
        texts = heard.take()
    finally:
        heard.stop()
    assert texts[:2] == ["library: odd %s", "library: number 0"]
    assert texts[-1] == "and 11 more warnings"
    assert len(texts) == 21
