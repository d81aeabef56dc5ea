"""The processes below this one: on Linux all of them, whatever sessions and orphans they made of themselves.

A Linux process can be made the parent of every orphan below it (PR_SET_CHILD_SUBREAPER, ``man 2 prctl``), so none gets
out of its tree. Elsewhere there is no such thing, and a process that starts a session of its own is not found.
"""

from __future__ import annotations

import contextlib
import ctypes
import os
import signal
import sys
import time

_PR_SET_PDEATHSIG, _PR_SET_CHILD_SUBREAPER = 1, 36
_IS_LINUX = sys.platform == "linux"
#: Seconds after which processes that do not end, as in the kernel's uninterruptible sleep, are left.
_END_SECONDS = 5.0
_PAUSE = 0.001


def adopt_orphans() -> None:
    """Become the parent of every orphan below this process, where the system knows of such a thing."""
    if _IS_LINUX:
        ctypes.CDLL(None).prctl(_PR_SET_CHILD_SUBREAPER, 1, 0, 0, 0)


def die_with(parent: int) -> None:
    """Have the kernel kill this process when ``parent`` ends, where it can."""
    if _IS_LINUX:
        ctypes.CDLL(None).prctl(_PR_SET_PDEATHSIG, int(signal.SIGKILL), 0, 0, 0)
        if os.getppid() != parent:
            os._exit(1)


def reap() -> tuple[dict[int, int], bool]:
    """The wait statuses of children that have ended, and whether there are others."""
    ended: dict[int, int] = {}
    while True:
        try:
            pid, status = os.waitpid(-1, os.WNOHANG)
        except ChildProcessError:
            return ended, False
        if pid == 0:
            return ended, True
        ended[pid] = status


def end_all_below() -> dict[int, int]:
    """Kill every process below this one until there is none; the wait statuses of the children."""
    ended: dict[int, int] = {}
    deadline = time.monotonic() + _END_SECONDS
    while True:
        newly, has_more = reap()
        ended |= newly
        if not has_more or time.monotonic() > deadline:
            return ended
        for pid in processes_below(os.getpid()):
            kill(pid)
        time.sleep(_PAUSE)


def kill(pid: int) -> None:
    """Kill a process, which may be gone already."""
    with contextlib.suppress(ProcessLookupError, PermissionError):
        os.kill(pid, signal.SIGKILL)


def kill_group(pid: int) -> None:
    """Kill what is left of the process group that a process leads or led."""
    with contextlib.suppress(ProcessLookupError, PermissionError):
        os.killpg(pid, signal.SIGKILL)


def processes_below(root: int) -> list[int]:
    """All descendants of a process, by the kernel's own table; none where the system shows no such table."""
    children: dict[int, list[int]] = {}
    for pid, parent in _parents():
        children.setdefault(parent, []).append(pid)
    below, waiting = list[int](), [root]
    while waiting:
        found = children.get(waiting.pop(), [])
        below += found
        waiting += found
    return below


def _parents() -> list[tuple[int, int]]:
    if not _IS_LINUX:
        return []
    pairs: list[tuple[int, int]] = []
    for name in os.listdir("/proc"):
        if name.isdigit():
            with contextlib.suppress(OSError), open(f"/proc/{name}/stat", "rb") as file:
                # The name of the program, in parentheses, may hold anything; state and parent come after its end.
                pairs.append((int(name), int(file.read().rpartition(b")")[2].split()[1])))
    return pairs
