"""A script that waits for a process to end, then ends what is left of its local Ray and removes its folder.

Run as ``python janitor.py FOLDER PID`` with a pipe as stdin: its end, or that of process PID, is the sign to begin.
Ray's own processes notice a killed driver too, but some only after a minute. Imports the standard library only.
"""

import contextlib
import os
import select
import shutil
import signal
import sys
import time
from pathlib import Path

#: The environment variable that names the folder in every process of a local Ray.
MARK = "DAGRL_RAY_FOLDER"
_LIMIT_SECONDS = 10.0
#: Programs that use this Ray, its starter and others that joined it, write to a file named so.
_DRIVER_LOG = "python-core-driver"


def main(folder: str, parent: int) -> None:
    """Wait, end, remove."""
    while os.getppid() == parent and not select.select([sys.stdin], [], [], 1.0)[0]:
        pass
    end = time.monotonic() + _LIMIT_SECONDS
    while time.monotonic() < end and (left := processes_of(folder)):
        for pid in left:
            _kill(pid)
        time.sleep(0.05)
    shutil.rmtree(folder, ignore_errors=True)


def processes_of(folder: str) -> list[int]:
    """The processes that name the folder in their command or environment or have a file in it open, but for drivers."""
    mine = os.getpid()
    entries = [entry for entry in Path("/proc").iterdir() if entry.name.isdecimal()] if Path("/proc").is_dir() else []
    return [int(entry.name) for entry in entries if int(entry.name) != mine and _belongs(entry, folder)]


def _belongs(process: Path, folder: str) -> bool:
    try:
        words = (process / "cmdline").read_bytes() + (process / "environ").read_bytes()
        files = [os.readlink(opened) for opened in (process / "fd").iterdir()]
    except OSError:
        return False
    ours = folder.encode() in words or any(name.startswith(folder) for name in files)
    return ours and not any(_DRIVER_LOG in name for name in files)


def _kill(pid: int) -> None:
    with contextlib.suppress(OSError):
        os.kill(pid, signal.SIGKILL)


if __name__ == "__main__":
    main(sys.argv[1], int(sys.argv[2]))
