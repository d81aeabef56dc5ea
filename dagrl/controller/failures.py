"""What the controller learns when a worker raises an error or its process ends."""

from __future__ import annotations

import os
import re
import signal
import time
import traceback
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from pathlib import Path
from types import TracebackType
from weakref import WeakKeyDictionary, WeakValueDictionary

from dagrl.errors import WorkerError, WorkerLostError

#: A line that a worker writes to its log when Python code ends the process.
_EXIT_MARK = "dagrl: process {pid} ends with exit code "
_TAIL_BYTES = 16384
#: The longest message and traceback, in characters, and the largest error, in bytes, that travel. Together they stay,
#: also in characters of four bytes, below the 100 KB up to which Ray sends a result to its caller at once, so that
#: `poll` need not fetch what is larger.
_MOST_CHARACTERS, _MOST_BYTES = 8_000, 24_576


@dataclass(frozen=True)
class Seat:
    """A worker's process: which rank it is, where it runs and where its last words will be."""

    group: str
    rank: int
    node_ip: str
    node_id: str = ""
    pid: int = 0
    log: str = ""
    oom_kills: int = 0


#: The seats of this program's workers by node and process, for as long as their groups have them.
_SEATS: WeakValueDictionary[tuple[str, int], Seat] = WeakValueDictionary()


#: What ended the groups of seats, for as long as they have these.
_ENDED_BY: WeakKeyDictionary[Seat, WorkerError] = WeakKeyDictionary()


def remember(seats: Iterable[Seat]) -> None:
    """Let `known_seat` find the seats."""
    for seat in seats:
        _SEATS[seat.node_ip, seat.pid] = seat


def named_seat(ray_says: str) -> Seat | None:
    """The worker that Ray says has ended, by the name that its group gave it; None if that is no worker's."""
    said = dict(re.findall(r"^\t(pid|name|ip): (.+)$", ray_says, re.MULTILINE))
    name = re.fullmatch(r"(.+)_[0-9a-f]{8}_(\d+)", said.get("name", ""))
    if name is None:
        return None
    return Seat(name[1], int(name[2]), said.get("ip", "unknown"), pid=int(said.get("pid", "0")))


def known_seat(seat: Seat) -> Seat:
    """All that is known of a seat in this process."""
    return _SEATS.get((seat.node_ip, seat.pid), seat)


def remember_end(seats: Iterable[Seat], error: WorkerError) -> None:
    """Let `ended_by` tell of the seats, all ended with their group, which error ended that."""
    for seat in seats:
        _ENDED_BY[seat] = error


def ended_by(seat: Seat) -> WorkerError | None:
    """What ended the group of a seat, if it has ended and this process knows."""
    return _ENDED_BY.get(seat)


class RemoteFault(Exception):
    """An error of a worker in a form that always travels, and is small."""

    def __init__(
        self, seat: Seat, method: str, error_type: str, message: str, trace: str, pickled: bytes, when: float
    ) -> None:
        super().__init__(seat, method, error_type, message, trace, pickled, when)
        self.seat = seat
        self.method = method
        self.error_type = error_type
        self.error_message = message
        self.trace = trace
        self.pickled = pickled
        self.when = when

    def __str__(self) -> str:
        return f"{self.error_type} in `{self.method}` on rank {self.seat.rank}"


def fault_of(error: BaseException, seat: Seat, method: str, pickled: bytes = b"") -> RemoteFault:
    """The error as it travels, from the process that caught it; long texts are cut, and a large error stays behind."""
    trace = "".join(traceback.format_exception(type(error), error, _users_part(error.__traceback__)))
    kept = pickled if len(pickled) <= _MOST_BYTES else b""
    return RemoteFault(seat, method, type(error).__name__, _cut(text_of(error)), _cut(trace), kept, time.time())


def _cut(text: str) -> str:
    """The text, without its middle where it is long."""
    if len(text) <= _MOST_CHARACTERS:
        return text
    half = _MOST_CHARACTERS // 2
    return f"{text[:half]}\n... {len(text) - 2 * half} characters are left out ...\n{text[-half:]}"


def _users_part(trace: TracebackType | None) -> TracebackType | None:
    """The traceback without the frames of this package at its start, unless there are no others."""
    here = str(Path(__file__).parent)
    inner = trace
    while inner is not None and inner.tb_frame.f_code.co_filename.startswith(here):
        inner = inner.tb_next
    return inner or trace


def worker_error(fault: RemoteFault, original: BaseException | None) -> WorkerError:
    """The error that the controller raises; it carries the worker's traceback as a note."""
    error = WorkerError(
        group=fault.seat.group,
        method=fault.method,
        rank=fault.seat.rank,
        node_ip=fault.seat.node_ip,
        error_type=fault.error_type,
        error_message=fault.error_message,
        worker_traceback=fault.trace,
        original=original,
    )
    error.add_note(f"traceback in the worker:\n{fault.trace}")
    return error


def text_of(error: BaseException) -> str:
    """The error's message, also if making it fails."""
    try:
        return str(error)
    except Exception as failure:  # noqa: BLE001 - the user's own __str__
        return f"(its message cannot be shown: {type(failure).__name__})"


@dataclass(frozen=True)
class Evidence:
    """What a node knows of a process that has ended."""

    oom_kills: int
    last_words: str


def evidence(log: str) -> Evidence:
    """Look at the log of a process that ended on this node, and at the kernel's count of out-of-memory kills."""
    path = Path(log)
    words = b""
    if log and path.is_file():
        with path.open("rb") as file:
            file.seek(max(path.stat().st_size - _TAIL_BYTES, 0))
            words = file.read()
    return Evidence(count_oom_kills(), words.decode(errors="replace"))


def count_oom_kills() -> int:
    """How many processes the kernel has killed for memory since boot; 0 where it does not say."""
    stat = Path("/proc/vmstat")
    found = re.search(r"^oom_kill (\d+)$", stat.read_text(), re.MULTILINE) if stat.is_file() else None
    return int(found[1]) if found else 0


def announce_exits() -> None:
    """Make this process write its exit code to its log when Python code ends it, for nobody else is told."""
    leave = os._exit

    def leave_and_say(status: int) -> None:
        os.write(2, f"\n{_EXIT_MARK.format(pid=os.getpid())}{status}\n".encode())
        leave(status)

    os._exit = leave_and_say  # pyright: ignore[reportAttributeAccessIssue] - it does not return either


def lost_error(seat: Seat, method: str, ray_says: str, look: Callable[[Seat], Evidence | None]) -> WorkerLostError:
    """The error for a process that has ended: its cause, and the end of its log as a note."""
    found = look(seat)
    error = WorkerLostError(
        group=seat.group,
        method=method,
        rank=seat.rank,
        node_ip=seat.node_ip,
        error_type="WorkerLostError",
        error_message=exit_cause(seat, ray_says, found),
    )
    words = _own_words(found.last_words) if found else ""
    if words:
        error.worker_traceback = words
        error.add_note(f"the end of its log:\n{words}")
    return error


def gone_error(seat: Seat, method: str, why: str) -> WorkerLostError:
    """The error for a call whose worker was ended on purpose."""
    return WorkerLostError(
        group=seat.group,
        method=method,
        rank=seat.rank,
        node_ip=seat.node_ip,
        error_type="WorkerLostError",
        error_message=why,
    )


def exit_cause(seat: Seat, ray_says: str, found: Evidence | None) -> str:
    """Why a process ended, from what Ray says of it and what its node knows."""
    if "NODE_OUT_OF_MEMORY" in ray_says or "running low on memory" in ray_says:
        return "out of memory: Ray ended it because its node ran low"
    if "receives a SIGTERM" in ray_says:
        return _killed_by(signal.SIGTERM)
    said = re.search(r"exit code (\d+)", ray_says) or (
        found and re.search(_EXIT_MARK.format(pid=seat.pid) + r"(\d+)", found.last_words)
    )
    if said:
        return f"exit code {said[1]}"
    if found and (crashed := re.search(r"\*\*\* (SIG[A-Z]+) received", found.last_words)):
        return _killed_by(signal.Signals[crashed[1]])
    if found and found.oom_kills > seat.oom_kills:
        return "out of memory: the kernel killed it (signal 9)"
    if "its node has died" in ray_says and not found:
        return "its node was lost"
    return _killed_by(signal.SIGKILL) if found else "killed by signal 9 (SIGKILL), or for memory"


def _killed_by(number: signal.Signals) -> str:
    return f"killed by signal {int(number)} ({number.name})"


def _own_words(log: str) -> str:
    """The last lines of a log without those that Ray writes at its start."""
    lines = [line for line in log.splitlines() if line.strip() and not line.startswith((":job_id:", ":actor_name:"))]
    return "\n".join(lines[-20:])
