"""What is written to descriptors 1 and 2 while the console is a file, by whom ever."""

import os
import subprocess
import sys
from pathlib import Path

from support import ROOT

SCRIPT = """
import ctypes, os, pathlib, subprocess, sys, time
from dagrl.cli.console_log import ConsoleLog
folder = pathlib.Path(sys.argv[1])
print("before")
log = ConsoleLog()
terminal = log.start()
print("python")
ctypes.CDLL(None).puts(b"buffered by C")
early = subprocess.Popen(["sh", "-c", "read go; echo from an early child"], stdin=subprocess.PIPE)
log.keep_in(folder)
print("later", file=sys.stderr)
os.write(1, b"bytes\\n")
subprocess.run(["echo", "from a child"])
assert log.new_text(100) == "python\\nbuffered by C\\nlater\\nbytes\\nfrom a child\\n", log.content()
assert log.new_text(100) == ""
os.write(2, b"x" * 500)
assert log.new_text(100) == "x" * 100
os.write(terminal, b"past it\\n")
early.communicate(b"go\\n")
log.stop()
print("after")
"""


def test_all_of_it_is_in_the_file_and_nothing_else(tmp_path: Path) -> None:
    (tmp_path / "console.log").write_text("of a former run\n")
    environment = {name: value for name, value in os.environ.items() if name != "PYTHONUNBUFFERED"}
    done = subprocess.run(
        [sys.executable, "-c", SCRIPT, str(tmp_path)],
        capture_output=True,
        text=True,
        cwd=ROOT,
        timeout=60,
        env=environment,
    )
    assert done.returncode == 0, done.stderr
    assert done.stdout == "before\npast it\nafter\n"
    assert done.stderr == ""
    content = (tmp_path / "console.log").read_text()
    assert content.startswith("of a former run\npython\nbuffered by C\nlater\nbytes\nfrom a child\nxxx")
    assert content.endswith("xfrom an early child\n")
