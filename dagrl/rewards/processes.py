"""How children start: from a fork server of our own, a small process that never loads torch.

A child is forked from that server in milliseconds, where a new interpreter takes half a second; forking the run's own
process, with its threads, is not safe. The user's main script is not run again in the children, which
``multiprocessing`` would do, and a server that the user's program has for itself is left alone.
"""

# The standard library offers no public way to do either; this is the one module that reaches into it.
# pyright: reportPrivateUsage=false, reportAttributeAccessIssue=false, reportUnknownParameterType=false

from __future__ import annotations

import io
import os
from multiprocessing import forkserver, popen_forkserver, reduction, spawn, util
from multiprocessing.context import ForkServerContext, ForkServerProcess, set_spawning_popen
from multiprocessing.process import BaseProcess
from typing import Any

_MAIN = ("init_main_from_name", "init_main_from_path")
_server = forkserver.ForkServer()
_server.set_forkserver_preload(["dagrl.rewards.child"])


class _Popen(popen_forkserver.Popen):
    """As its base, with our server, and without the main module."""

    def _launch(self, process_obj: BaseProcess) -> None:
        preparation = {
            name: value for name, value in spawn.get_preparation_data(process_obj._name).items() if name not in _MAIN
        }
        data = io.BytesIO()
        set_spawning_popen(self)  # pyright: ignore[reportArgumentType] - typeshed names one kind of Popen only
        try:
            reduction.dump(preparation, data)
            reduction.dump(process_obj, data)
        finally:
            set_spawning_popen(None)
        self.sentinel, writer = _server.connect_to_new_process(self._fds)
        parent = os.dup(writer)
        self.finalizer = util.Finalize(self, util.close_fds, (parent, self.sentinel))
        with open(writer, "wb", closefd=True) as pipe:
            pipe.write(data.getbuffer())
        self.pid = forkserver.read_signed(self.sentinel)


class RewardProcess(ForkServerProcess):
    """A process from our fork server."""

    @staticmethod
    def _Popen(process_obj: BaseProcess) -> Any:
        return _Popen(process_obj)


class RewardContext(ForkServerContext):
    """Starts reward processes, and makes the locks and pipes that they share."""

    Process = RewardProcess  # pyright: ignore[reportAssignmentType]


def stop_server() -> None:
    """End the fork server; the next process starts a new one."""
    _server._stop()
