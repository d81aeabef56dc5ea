"""Workers that raise, die, hang or cannot start: an error within seconds, and nobody left."""

import os
import pickle
import re
import signal
import sys
import threading
import time
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path
from typing import Any

import psutil
import pytest

from dagrl.controller import (
    Dispatch,
    RayClassWithInitArgs,
    RayResourcePool,
    RayWorkerGroup,
    Worker,
    WorkerGroup,
    register,
    ship_by_value,
)
from dagrl.controller.failures import Evidence, Seat, exit_cause, known_seat, named_seat, remember
from dagrl.errors import (
    ClusterError,
    DispatchError,
    WorkerEnvironmentError,
    WorkerError,
    WorkerLostError,
    WorkerTimeoutError,
)

ship_by_value(sys.modules[__name__])
MakeGroup = Callable[..., WorkerGroup]


class LockedError(Exception):
    """It cannot be pickled."""

    def __init__(self, message: str) -> None:
        super().__init__(message)
        self.lock = threading.Lock()


class TwoArgumentsError(Exception):
    """It can be pickled, but not had back."""

    def __init__(self, first: str, second: str) -> None:
        super().__init__(f"{first} and {second}")


class MuteError(Exception):
    """It has no message."""

    def __str__(self) -> str:
        raise RuntimeError("no")


class Unsent:
    """It fails in its own way when it is sent."""

    def __reduce__(self) -> Any:
        raise OSError("the file is gone")


class Faulty(Worker):
    def __init__(self, fail_on: int = -1, *, hang_on: int = -1) -> None:
        if self.rank == fail_on:
            raise ValueError(f"no worker of rank {fail_on}")
        if self.rank == hang_on:
            time.sleep(600)

    @register(Dispatch.ONE_TO_ALL)
    def work(self, how: str, rank: int = 1) -> int:
        """Rank ``rank`` fails, the others wait as in a collective."""
        if how == "well":
            return os.getpid()
        if self.rank == rank:
            self.fail(how)
        time.sleep(600)
        return 0

    @register(Dispatch.ONE_TO_ALL, blocking=False)
    def begin(self, how: str, rank: int = 1) -> int:
        return self.work(how, rank)

    @register(Dispatch.ONE_TO_ALL)
    def both(self) -> None:
        """Rank 0 is the first to fail."""
        time.sleep(0.1 * self.rank)
        raise ValueError(f"from rank {self.rank}")

    @register(Dispatch.ONE_TO_ALL)
    def give(self, value: Any) -> Any:
        return threading.Lock() if value == "lock" else value

    @register(Dispatch.ONE_TO_ALL)
    def update(self, log: str) -> None:
        """It does something for good, and rank 1 dies of it."""
        with Path(log).open("a") as file:
            file.write(f"{self.rank}\n")
        self.work("kill")

    def fail(self, how: str) -> None:
        match how:
            case "raise":
                raise ValueError("boom")
            case "large":
                raise ValueError("€" * 300_000 + "z")
            case "locked":
                raise LockedError("held")
            case "two":
                raise TwoArgumentsError("this", "that")
            case "mute":
                raise MuteError
            case "kill":
                os.kill(os.getpid(), signal.SIGKILL)
            case "crash":
                os.kill(os.getpid(), signal.SIGSEGV)
            case "leave":
                os._exit(3)
            case "exit":
                sys.exit(4)


def gone(pids: list[int], seconds: float = 5.0) -> bool:
    end = time.monotonic() + seconds
    while time.monotonic() < end and any(map(psutil.pid_exists, pids)):
        time.sleep(0.05)
    return not any(map(psutil.pid_exists, pids))


@pytest.mark.parametrize(
    ("how", "kind", "message"),
    [
        ("raise", WorkerError, "`work` failed on rank 1 of worker group `actor` (node 127.0.0.1): ValueError: boom"),
        ("locked", WorkerError, "LockedError: held"),
        ("two", WorkerError, "TwoArgumentsError: this and that"),
        ("mute", WorkerError, "MuteError: (its message cannot be shown: RuntimeError)"),
        ("exit", WorkerError, "SystemExit: 4"),
        ("kill", WorkerLostError, "was lost during `work`: killed by signal 9 (SIGKILL)"),
        ("crash", WorkerLostError, "was lost during `work`: killed by signal 11 (SIGSEGV)"),
        ("leave", WorkerLostError, "was lost during `work`: exit code 3"),
    ],
)
def test_one_rank_fails_while_the_other_is_blocked(
    make_ray_group: MakeGroup, capfd: pytest.CaptureFixture[str], how: str, kind: type[WorkerError], message: str
) -> None:
    group: Any = make_ray_group(Faulty, name_prefix="actor")
    pids = group.work("well")
    started = time.monotonic()
    with pytest.raises(kind) as caught:
        group.work(how)
    assert time.monotonic() - started < 5
    error = caught.value
    assert type(error) is kind
    assert message in str(error)
    assert "ray" not in str(error)
    assert (error.rank, error.group, error.method) == (1, "actor", "work")
    assert error.__cause__ is None
    assert error.__suppress_context__
    assert gone(pids)
    with pytest.raises(kind) as again:
        group.work("well")
    assert again.value is error
    time.sleep(0.3)
    assert capfd.readouterr() == ("", "")


def test_the_original_error_and_its_traceback_arrive(make_ray_group: MakeGroup) -> None:
    group: Any = make_ray_group(Faulty)
    with pytest.raises(WorkerError) as caught:
        group.work("raise")
    assert isinstance(caught.value.original, ValueError)
    assert caught.value.worker_traceback.endswith('raise ValueError("boom")\nValueError: boom\n')
    assert "dagrl/controller" not in caught.value.worker_traceback
    copied = pickle.loads(pickle.dumps(caught.value))
    assert str(copied) == str(caught.value)


def test_the_first_of_two_errors_is_shown(make_ray_group: MakeGroup) -> None:
    group: Any = make_ray_group(Faulty)
    with pytest.raises(WorkerError, match="ValueError: from rank 0"):
        group.both()


def test_a_process_killed_from_outside_between_calls(make_ray_group: MakeGroup) -> None:
    group: Any = make_ray_group(Faulty)
    pids = group.work("well")
    os.kill(pids[0], signal.SIGKILL)
    with pytest.raises(WorkerLostError, match=r"rank 0 .* killed by signal 9"):
        group.work("well")
    assert gone(pids)


def test_a_call_is_made_once_whatever_becomes_of_it(make_ray_group: MakeGroup, tmp_path: Path) -> None:
    group: Any = make_ray_group(Faulty)
    with pytest.raises(WorkerLostError):
        group.update(str(tmp_path / "log"))
    group.rebuild()
    assert len(group.work("well")) == 2
    assert sorted((tmp_path / "log").read_text().split()) in (["1"], ["0", "1"])


def test_a_call_that_does_not_return(make_ray_group: MakeGroup) -> None:
    group: Any = make_ray_group(Faulty)
    pids = group.work("well")
    future = group.begin("sleep")
    with pytest.raises(WorkerTimeoutError, match=r"`begin` on rank 0 .* has not returned after 0.5 s"):
        future.get(timeout=0.5)
    assert not future.poll()
    assert all(map(psutil.pid_exists, pids))
    with pytest.raises(WorkerTimeoutError, match=r"was ended: it had not returned after 0.5 s"):
        future.get(deadline=0.5)
    assert gone(pids)


def test_a_deadline_for_every_blocking_call(make_ray_group: MakeGroup) -> None:
    group: Any = make_ray_group(Faulty, deadline=2.0)
    pids = group.work("well")
    with pytest.raises(WorkerTimeoutError, match=r"after 2\.0 s"):
        group.work("sleep")
    assert gone(pids)


@pytest.mark.parametrize(("how", "kind"), [("kill", WorkerLostError), ("large", WorkerError)])
def test_polling_finds_the_failure_while_others_run(
    make_ray_group: MakeGroup, how: str, kind: type[WorkerError]
) -> None:
    group: Any = make_ray_group(Faulty)
    future = group.begin(how)
    end = time.monotonic() + 5
    while group.failure is None and time.monotonic() < end:
        with suppress(kind):
            assert not future.poll()
    assert type(group.failure) is kind
    assert how != "large" or re.search(r"€€€\n\.\.\. 292001 characters are left out \.\.\.\n€+z", str(group.failure))


def test_a_worker_that_cannot_be_constructed(make_ray_group: MakeGroup) -> None:
    started = time.monotonic()
    with pytest.raises(WorkerError, match=r"`__init__` failed on rank 1 .*: ValueError: no worker of rank 1"):
        make_ray_group(Faulty, 1)
    assert time.monotonic() - started < 30


@pytest.mark.long
def test_a_worker_whose_constructor_does_not_return(ray_session: object) -> None:
    started = time.monotonic()
    pool = RayResourcePool([2], use_gpu=False, name_prefix="hanging")
    maker = RayClassWithInitArgs(Faulty, hang_on=1)
    with pytest.raises(WorkerTimeoutError, match=r"`__init__` on rank 1 .* was ended: it had not returned after"):
        RayWorkerGroup(pool, maker, ray_wait_register_center_timeout=8)
    assert time.monotonic() - started < 15
    pool.release()


def test_what_cannot_be_sent_is_an_error_of_the_method(make_ray_group: MakeGroup) -> None:
    group: Any = make_ray_group(Faulty)
    with pytest.raises(DispatchError, match="`give` cannot be called on rank 0"):
        group.give(threading.Lock())
    assert group.give(3) == [3, 3]
    with pytest.raises(WorkerError, match=r"`give` failed on rank 0 .*: TypeError: .*lock"):
        group.give("lock")


@pytest.mark.parametrize(("value", "said"), [(threading.Lock, ".*lock"), (Unsent, "OSError: the file is gone")])
def test_a_call_that_reaches_only_some_ranks_ends_the_group(
    make_ray_group: MakeGroup, value: Callable[[], Any], said: str
) -> None:
    group: Any = make_ray_group(Faulty)
    pids = group.work("well")
    with pytest.raises(DispatchError, match=f"`give` cannot be called on rank 1: {said}"):
        group.execute_all("give", [3, value()])
    assert gone(pids)
    with pytest.raises(WorkerError, match="DispatchError"):
        group.give(3)


def test_what_cannot_be_returned_is_an_error_of_the_method(make_ray_group: MakeGroup) -> None:
    group: Any = make_ray_group(Faulty)
    with pytest.raises(WorkerError, match=r"`give` failed on rank 0 .*: TypeError: .*lock"):
        group.give("lock")


def test_a_pool_larger_than_the_cluster(ray_session: object) -> None:
    started = time.monotonic()
    with pytest.raises(ClusterError, match="pool `main` needs 64 CPU, cluster has 16"):
        RayWorkerGroup(RayResourcePool([64], use_gpu=False, name_prefix="main"), RayClassWithInitArgs(Faulty))
    with pytest.raises(ClusterError, match="pool `main` needs 16 GPU, cluster has 0"):
        RayWorkerGroup(RayResourcePool([8, 8], name_prefix="main"), RayClassWithInitArgs(Faulty))
    with pytest.raises(ClusterError, match="pool `main` needs 1 GPU, cluster has 0"):
        RayResourcePool([1], name_prefix="main").get_placement_groups()
    with pytest.raises(ClusterError, match=r"needs 0\.0001 H100, cluster has 0"):
        RayResourcePool([1], use_gpu=False, accelerator_type="H100").get_placement_groups()
    assert time.monotonic() - started < 5


def test_system_variables_are_not_the_users(make_group: MakeGroup) -> None:
    with pytest.raises(WorkerEnvironmentError, match=r"sets `MASTER_PORT`, `RANK`, which the worker group sets"):
        make_group(Faulty, worker_env={"RANK": "1", "MASTER_PORT": "1", "MINE": "1"})


SEAT = Seat("actor", 0, "10.0.0.1", "abc", pid=7, oom_kills=2)
DIED = """The actor died unexpectedly before finishing this task.
\tclass_name: Maker
\tactor_id: 1f
\tpid: 7
\tname: {name}
\tnamespace: dagrl
\tip: 10.0.0.1
The actor is dead because its worker process has died."""


def test_who_has_died_is_read_from_the_name() -> None:
    assert named_seat(DIED.format(name="the_makers_0123abcd_11")) == Seat("the_makers", 11, "10.0.0.1", pid=7)
    for says in (DIED.format(name="of another program"), "The actor died.", ""):
        assert named_seat(says) is None
    seats = [Seat("the_makers", 11, "10.0.0.1", "node", pid=7, log="log")]
    remember(seats)
    assert known_seat(Seat("the_makers", 11, "10.0.0.1", pid=7)) is seats[0]
    del seats[0]
    assert known_seat(Seat("the_makers", 11, "10.0.0.1", pid=7)).log == ""


UNEXPECTED = (
    "Worker exit type: SYSTEM_ERROR Worker exit detail: Worker unexpectedly exits, maybe by the OOM killer, see "
    "dmesg of the OOMing node, to prevent node deaths; the worker process has died"
)


@pytest.mark.parametrize(
    ("ray_says", "found", "cause"),
    [
        (UNEXPECTED, Evidence(2, ""), "killed by signal 9 (SIGKILL)"),
        (UNEXPECTED, Evidence(3, ""), "out of memory: the kernel killed it (signal 9)"),
        (UNEXPECTED, None, "killed by signal 9 (SIGKILL), or for memory"),
        (UNEXPECTED, Evidence(2, "dagrl: process 7 ends with exit code 5\n"), "exit code 5"),
        (UNEXPECTED, Evidence(2, "dagrl: process 8 ends with exit code 5\n"), "killed by signal 9 (SIGKILL)"),
        (UNEXPECTED, Evidence(2, "*** SIGABRT received at time=1"), "killed by signal 6 (SIGABRT)"),
        ("Worker exits with an exit code 1. The process receives a SIGTERM.", None, "killed by signal 15 (SIGTERM)"),
        ("Worker exits with an exit code 4.", Evidence(2, ""), "exit code 4"),
        ("exit type: NODE_OUT_OF_MEMORY", None, "out of memory: Ray ended it because its node ran low"),
        ("The actor died because its node has died.", None, "its node was lost"),
    ],
)
def test_exit_causes(ray_says: str, found: Evidence | None, cause: str) -> None:
    assert exit_cause(SEAT, ray_says, found) == cause
