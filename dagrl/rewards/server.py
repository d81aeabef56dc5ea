"""The fork server: a small process without torch, from which keepers and their reward processes are forked.

It runs nothing of the user's. It ends, and kills all below it, when the run closes its end of the ``control`` socket
or is gone. Its session is its own, so that no Ctrl-C in a terminal reaches it.
"""

from __future__ import annotations

import gc
import os
import signal
import socket

from dagrl.rewards import child as _child  # noqa: F401  # pyright: ignore[reportUnusedImport] - loaded once for all
from dagrl.rewards.keeper import keep
from dagrl.rewards.tree import adopt_orphans, end_all_below

#: What comes with a request: the task socket, the lifeline and the board of a new process.
NUM_DESCRIPTORS = 3


def serve(control: socket.socket) -> None:
    """Fork a keeper for each request until the control socket closes."""
    adopt_orphans()
    signal.signal(signal.SIGCHLD, signal.SIG_IGN)  # ended keepers leave no zombies
    gc.freeze()
    while descriptors := _request(control):
        try:
            if os.fork() == 0:
                _become_keeper(control, descriptors)
        except OSError:
            pass  # no process is to be had: the run sees its descriptors close
        for descriptor in descriptors:
            os.close(descriptor)
    end_all_below()


def _request(control: socket.socket) -> list[int]:
    try:
        return socket.recv_fds(control, 1, NUM_DESCRIPTORS)[1]
    except OSError:
        return []


def _become_keeper(control: socket.socket, descriptors: list[int]) -> None:
    try:
        signal.signal(signal.SIGCHLD, signal.SIG_DFL)
        control.close()
        keep(*descriptors)
    finally:
        os._exit(0)
