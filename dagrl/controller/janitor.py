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
#: In the command of a process that ends by itself what lies below it once its parent is gone, and is left that time.
_KEEPER = b"dagrl.rewards"
_KEEPER_SECONDS = 5.0
#: Programs that use this Ray, its starter and others that joined it, write to a file named so.
_DRIVER_LOG = "python-core-driver"


def main(folder: str, parent: int) -> None:
    """Wait, end, remove."""
    while os.getppid() == parent and not select.select([sys.stdin], [], [], 1.0)[0]:
        pass
    begun = time.monotonic()
    while (passed := time.monotonic() - begun) < _LIMIT_SECONDS and (left := processes_of(folder)):
        for pid in left:
            if passed > _KEEPER_SECONDS or not _keeps_others(pid):
                _kill(pid)
        time.sleep(0.05)
    shutil.rmtree(folder, ignore_errors=True)


def processes_of(folder: str) -> list[int]:
    """The processes that name the folder in their command or environment or have a file in it open, but for drivers."""
    mine = os.getpid()
    entries = [entry for entry in Path("/proc").iterdir() if entry.name.isdecimal()] if Path("/proc").is_dir() else []
    return [int(entry.name) for entry in entries if int(entry.name) != mine and _belongs(entry, folder)]


def _keeps_others(pid: int) -> bool:
    try:
        return _KEEPER in Path(f"/proc/{pid}/cmdline").read_bytes()
    except OSError:
        return False


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
