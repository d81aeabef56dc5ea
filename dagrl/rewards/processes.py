"""The run's side of a reward process: forked by the fork server, sent one task at a time, ended with all below it.

A process is forked from a small server in milliseconds, where a new interpreter takes half a second; forking the run's
own process, with its threads, is not safe. No lock is shared, so nothing a process does while it dies can hold up
another, and nothing is left behind in the system when the run is killed.
"""

from __future__ import annotations

import contextlib
import os
import pickle
import select
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Iterable
from typing import Any

from dagrl.rewards.board import Board, Entry, new_board
from dagrl.rewards.errors import RewardProcessError
from dagrl.rewards.frames import Exchange
from dagrl.rewards.keeper import STATUS

_END_SECONDS = 10.0
_COMMAND = (
    "import socket, sys; sys.path[:] = {path!r}; from dagrl.rewards.server import serve; "
    "serve(socket.socket(fileno={descriptor}))"
)


class ForkServer:
    """The process from which reward processes are forked; started when first needed, and again if it dies."""

    def __init__(self) -> None:
        self._process: subprocess.Popen[bytes] | None = None
        self._control: socket.socket | None = None

    def fork(self, descriptors: list[int]) -> None:
        """Ask for a keeper and its process on these descriptors; whether they come shows on the lifeline.

        Raises:
            RewardProcessError: when there is no server to be had.
        """
        for _ in range(2):
            try:
                socket.send_fds(self._running(), [b"f"], descriptors)
            except OSError:
                self.stop()
            else:
                return
        raise RewardProcessError("the server that starts reward processes ends as soon as it begins")

    def stop(self) -> None:
        """End the server and with it every process below it."""
        process, control = self._process, self._control
        self._process = self._control = None
        if process is None or control is None:
            return
        # Closing alone would not reach the server while a copy of this process, which somebody forked, has the socket.
        with contextlib.suppress(OSError):
            control.shutdown(socket.SHUT_RDWR)
        control.close()
        try:
            process.wait(_END_SECONDS)
        except subprocess.TimeoutExpired:
            process.kill()
            process.wait()

    def _running(self) -> socket.socket:
        if self._control is None:
            ours, theirs = socket.socketpair()
            command = _COMMAND.format(path=_absolute_path(), descriptor=theirs.fileno())
            with theirs:
                self._process = subprocess.Popen(
                    [sys.executable, "-c", command],
                    pass_fds=[theirs.fileno()],
                    stdin=subprocess.DEVNULL,
                    stdout=subprocess.DEVNULL,
                    stderr=subprocess.DEVNULL,
                    start_new_session=True,
                )
            self._control = ours
        return self._control


def _absolute_path() -> list[str]:
    return [os.path.abspath(folder) for folder in sys.path]


class Process:
    """One reward process, or what is known of its end."""

    def __init__(self, server: ForkServer) -> None:
        self._tasks, tasks = socket.socketpair()
        self._lifeline, lifeline = socket.socketpair()
        board = new_board()
        try:
            self._board = Board(board)
            server.fork([tasks.fileno(), lifeline.fileno(), board])
        finally:
            tasks.close()
            lifeline.close()
            os.close(board)
        self._exchange = Exchange(self._tasks)
        #: How the process ended, None while it has not.
        self.cause: str | None = None
        self._exchange.send(pickle.dumps((_absolute_path(), os.getcwd(), sys.argv)))
        self._waiting = b""

    def send(self, message: bytes) -> None:
        """Give the process, which is idle, a task."""
        if self._exchange.has_more_to_send:
            self._waiting = message
        else:
            self._exchange.send(message)

    def entry(self, serial: int) -> Entry | None:
        """What the process is at, None before it has begun the task."""
        return self._board.read(serial)

    def receive(self) -> bytes | None:
        """What came back; ``cause`` is set when nothing will any more."""
        self._push()
        message = self._exchange.receive()
        if message is None and self.cause is None and _is_readable(self._lifeline):
            message = self._exchange.receive()
            self._note_end()
        return message

    def _push(self) -> None:
        self._exchange.flush()
        if self._waiting and not self._exchange.has_more_to_send:
            waiting, self._waiting = self._waiting, b""
            self._exchange.send(waiting)

    def _note_end(self) -> None:
        told = self._lifeline.recv(STATUS.size)
        self.cause = cause_of(STATUS.unpack(told)[0]) if len(told) == STATUS.size else "was lost"
        self.close()

    def register(self, poll: Any) -> None:
        """Have a poll wait for whatever comes next."""
        if not self._exchange.is_over:
            poll.register(self._tasks, select.POLLIN | (select.POLLOUT if self._exchange.has_more_to_send else 0))
        poll.register(self._lifeline, select.POLLIN)

    def ask_to_end(self) -> None:
        """Have the keeper kill the process and all that it started."""
        if self.cause is None:
            with contextlib.suppress(OSError):
                self._lifeline.shutdown(socket.SHUT_WR)

    def end(self) -> None:
        """Kill the process and all that it started, and wait until they are gone."""
        self.ask_to_end()
        deadline = time.monotonic() + _END_SECONDS
        while self.cause is None and time.monotonic() < deadline:
            if _is_readable(self._lifeline, deadline - time.monotonic()):
                self._note_end()
        self.close()

    def close(self) -> None:
        """Let go of the sockets."""
        self.cause = self.cause or "was lost"
        self._tasks.close()
        self._lifeline.close()


def wait_for(processes: Iterable[Process], seconds: float) -> None:
    """Wait until one of the processes has something to say."""
    poll = select.poll()
    for process in processes:
        if process.cause is not None:
            return
        process.register(poll)
    poll.poll(1000 * seconds)


def cause_of(status: int) -> str:
    """How a process ended, by its wait status."""
    code = os.waitstatus_to_exitcode(status)
    try:
        return f"was killed by {signal.Signals(-code).name}" if code < 0 else f"exited with code {code}"
    except ValueError:
        return f"was killed by signal {-code}"


def _is_readable(stream: socket.socket, seconds: float = 0.0) -> bool:
    poll = select.poll()
    poll.register(stream, select.POLLIN)
    return bool(poll.poll(1000 * seconds))
