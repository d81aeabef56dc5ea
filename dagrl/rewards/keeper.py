"""The parent of one reward process: it does nothing but see to it that whatever the process started ends with it.

The run holds the other end of the ``lifeline``, a socket. When that end closes, because the run wants the process gone
or is itself gone, however it died, the keeper kills the process and all below it. When the process dies, it kills what
is left below. Then it tells the wait status on the lifeline, and ends.
"""

from __future__ import annotations

import contextlib
import os
import select
import signal
import socket
import struct

from dagrl.rewards.tree import adopt_orphans, die_with, end_all_below, kill, kill_group, reap

STATUS = struct.Struct("i")


def keep(tasks: int, lifeline: int, board: int) -> None:
    """Start a reward process on these descriptors and stay until all of it is over."""
    adopt_orphans()
    wake, woken = os.pipe()
    for end in (wake, woken):
        os.set_blocking(end, False)
    signal.set_wakeup_fd(woken, warn_on_full_buffer=False)
    signal.signal(signal.SIGCHLD, _wake)
    signal.signal(signal.SIGTERM, signal.SIG_IGN)
    keeper = os.getpid()
    pid = os.fork()
    if pid == 0:
        _become_worker(keeper, tasks, board, (lifeline, wake, woken))
    os.close(tasks)
    os.close(board)
    status = _until_over(pid, lifeline, wake)
    with contextlib.suppress(OSError), socket.socket(fileno=lifeline) as told:
        told.send(STATUS.pack(status))


def _wake(number: int, frame: object) -> None:
    """Nothing: that a child has ended comes as a byte on the wake-up descriptor."""


def _become_worker(keeper: int, tasks: int, board: int, unused: tuple[int, ...]) -> None:
    try:
        die_with(keeper)
        signal.set_wakeup_fd(-1)
        for number in (signal.SIGCHLD, signal.SIGTERM):
            signal.signal(number, signal.SIG_DFL)
        for descriptor in unused:
            os.close(descriptor)
        from dagrl.rewards.child import work

        work(tasks, board)
        os._exit(0)
    except BaseException:  # noqa: BLE001 - what a row leaves behind, an alarm say, may raise anywhere
        os._exit(1)


def _until_over(pid: int, lifeline: int, wake: int) -> int:
    """The wait status of the process, all below which has ended."""
    poll = select.poll()
    poll.register(lifeline, select.POLLIN)
    poll.register(wake, select.POLLIN)
    ended: dict[int, int] = {}
    while pid not in ended:
        ready = dict(poll.poll())
        if wake in ready:
            os.read(wake, 4096)
        ended |= reap()[0]
        if lifeline in ready and pid not in ended:
            kill(pid)
            ended[pid] = os.waitpid(pid, 0)[1]
    kill_group(pid)
    end_all_below()
    return ended[pid]
