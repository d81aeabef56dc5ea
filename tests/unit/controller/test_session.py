"""A local Ray of our own: quiet, on loopback only, and gone afterwards however its driver ends."""

import json
import os
import signal
import subprocess
import sys
import threading
import time
from pathlib import Path
from typing import Any

import psutil
import pytest

from dagrl.controller import RaySession, start_ray
from dagrl.controller.session import import_root

ROOT = Path(__file__).resolve().parents[3]
#: A driver that starts Ray with two busy workers, writes what it sees, and waits for a line on stdin.
DRIVER = """
import json, os, sys, time
from dagrl.controller import (
    Dispatch, RayClassWithInitArgs, RayResourcePool, RayWorkerGroup, Worker, register, start_ray,
)

class Busy(Worker):
    @register(Dispatch.ONE_TO_ALL)
    def pid(self):
        return os.getpid()

    @register(Dispatch.ONE_TO_ALL, blocking=False)
    def wait(self):
        time.sleep(600)

if __name__ == "__main__":
    session = start_ray(num_cpus=2)
    group = RayWorkerGroup(RayResourcePool([2], use_gpu=False), RayClassWithInitArgs(Busy))
    pids = group.pid()
    group.wait()
    folder = os.path.dirname(os.path.dirname(os.path.dirname(group.seats[0].log)))
    with open(sys.argv[1] + ".new", "w") as file:
        json.dump({"pids": pids, "folder": folder, "address": session.address}, file)
    os.rename(sys.argv[1] + ".new", sys.argv[1])
    sys.stdin.readline()
    if len(sys.argv) > 2:
        session.close()
        session.close()
        start_ray(num_cpus=1).close()
"""


class Driver:
    """A process that runs a script beside this one."""

    def __init__(self, folder: Path, name: str, *arguments: str, **variables: str) -> None:
        (folder / "driver.py").write_text(DRIVER)
        self.told = folder / f"{name}.json"
        command = [sys.executable, "driver.py", str(self.told), *arguments]
        environment = {key: value for key, value in os.environ.items() if not key.startswith("RAY_")}
        environment |= {"PYTHONPATH": str(ROOT), **variables}
        self.process = subprocess.Popen(
            command, cwd=folder, env=environment, stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.PIPE
        )

    def wait(self) -> dict[str, Any]:
        end = time.monotonic() + 90
        while not self.told.exists():
            assert self.process.poll() is None, self.process.communicate()
            assert time.monotonic() < end
            time.sleep(0.05)
        return json.loads(self.told.read_text())

    def children(self) -> list[psutil.Process]:
        return psutil.Process(self.process.pid).children(recursive=True)

    def finish(self) -> tuple[int, bytes, bytes]:
        out, err = self.process.communicate(b"\n", timeout=60)
        return self.process.returncode, out, err


def alive(processes: list[psutil.Process]) -> list[psutil.Process]:
    return [one for one in processes if one.is_running() and one.status() != psutil.STATUS_ZOMBIE]


def wait_until_gone(processes: list[psutil.Process], folder: str, seconds: float) -> None:
    end = time.monotonic() + seconds
    while (alive(processes) or Path(folder).exists()) and time.monotonic() < end:
        time.sleep(0.05)
    assert not alive(processes)
    assert not Path(folder).exists()


def listening(processes: list[psutil.Process]) -> set[str]:
    return {
        connection.laddr.ip.removeprefix("::ffff:")
        for process in processes
        for connection in process.net_connections()
        if connection.status == psutil.CONN_LISTEN
    }


@pytest.mark.long
def test_two_runs_at_once_are_quiet_on_loopback_and_leave_nothing(tmp_path: Path) -> None:
    drivers = [Driver(tmp_path, "one", "close"), Driver(tmp_path, "two")]
    told = [driver.wait() for driver in drivers]
    assert told[0]["address"] != told[1]["address"]
    children = [driver.children() for driver in drivers]
    for driver, processes, facts in zip(drivers, children, told, strict=True):
        assert {one.pid for one in processes} >= set(facts["pids"])
        assert listening([psutil.Process(driver.process.pid), *processes]) == {"127.0.0.1"}
    for driver, processes, facts in zip(drivers, children, told, strict=True):
        assert driver.finish() == (0, b"", b"")
        wait_until_gone(processes, facts["folder"], 5)


@pytest.mark.parametrize("number", [signal.SIGKILL, signal.SIGTERM])
def test_nothing_outlives_a_killed_driver(tmp_path: Path, number: signal.Signals) -> None:
    driver = Driver(tmp_path, "one")
    folder = driver.wait()["folder"]
    processes = driver.children()
    assert len(processes) > 4
    driver.process.send_signal(number)
    driver.process.wait(10)
    wait_until_gone(processes, folder, 10)


def test_a_ray_that_this_process_has_is_reused_and_left_alone(ray_session: RaySession) -> None:
    again = start_ray(num_cpus=3)
    assert again.address == ray_session.address
    again.close()
    import ray

    assert ray.is_initialized()
    assert ray.cluster_resources()["CPU"] == 16


@pytest.mark.parametrize(
    ("address", "message"),
    [
        ("127.0.0.1:1", "no Ray cluster can be joined at `127.0.0.1:1`: Connection refused"),
        ("nowhere.invalid:6379", "joined at `nowhere.invalid:6379`"),
        ("ray://127.0.0.1:10001", "an address is `host:port` or `auto`"),
        ("somewhere", "an address is `host:port` or `auto`"),
        ("auto", "joined at `auto`"),
    ],
)
def test_an_address_that_leads_nowhere(tmp_path: Path, address: str, message: str) -> None:
    started = time.monotonic()
    done = subprocess.run(
        [sys.executable, "-c", "from dagrl.controller import start_ray\nstart_ray()"],
        env={**os.environ, "RAY_ADDRESS": address, "PYTHONPATH": str(ROOT), "TMPDIR": str(tmp_path)},
        capture_output=True,
        text=True,
        check=False,
    )
    assert time.monotonic() - started < 15
    assert done.returncode == 1
    assert done.stdout == ""
    lines = done.stderr.splitlines()
    assert message in lines[-2]
    assert "during handling" not in done.stderr.lower()
    assert "RAY_ADDRESS" in lines[-1]


def test_a_port_where_no_ray_answers_is_an_error_in_time() -> None:
    import socket

    with socket.socket() as server:
        server.bind(("127.0.0.1", 0))
        server.listen()
        threading.Thread(target=lambda: server.accept(), daemon=True).start()
        port = server.getsockname()[1]
        started = time.monotonic()
        code = f"from dagrl.controller import start_ray\nstart_ray('127.0.0.1:{port}')"
        done = subprocess.run(
            [sys.executable, "-c", code],
            env={**os.environ, "PYTHONPATH": str(ROOT)},
            capture_output=True,
            text=True,
            check=False,
        )
        assert time.monotonic() - started < 20
        assert f"no Ray cluster can be joined at `127.0.0.1:{port}`" in done.stderr


def test_joining_a_running_ray_and_leaving_it(tmp_path: Path) -> None:
    token = {"RAY_AUTH_MODE": "token", "RAY_AUTH_TOKEN": "ab" * 32}
    head = Driver(tmp_path, "head", **token)
    facts = head.wait()
    code = """
import sys
from dagrl.controller import start_ray
with start_ray(sys.argv[1]) as session:
    import ray
    print(session.address, ray.cluster_resources()["CPU"])
"""
    done = subprocess.run(
        [sys.executable, "-c", code, facts["address"]],
        env={**os.environ, **token, "PYTHONPATH": str(ROOT)},
        capture_output=True,
        text=True,
        check=False,
    )
    assert (done.stdout, done.stderr) == (f"{facts['address']} 2.0\n", "")
    assert all(map(psutil.pid_exists, facts["pids"]))
    assert head.finish() == (0, b"", b"")


def test_where_dagrl_is_imported_from() -> None:
    assert import_root() == [str(ROOT)]


def test_the_answer_to_sigterm_is_still_ours(ray_session: RaySession) -> None:
    """Ray would put its own in place, which exits in silence."""
    assert signal.getsignal(signal.SIGTERM) in (signal.SIG_DFL, signal.SIG_IGN)
