"""The lock of a run folder: one living run, and none after a kill."""

import json
import os
import signal
import subprocess
import sys
from pathlib import Path

import pytest

from dagrl.errors import ConfigError
from dagrl.storage.folder import Folder
from dagrl.storage.run_lock import LOCK, RunLock

HOLD = """
import sys, time
from dagrl.storage.folder import Folder
from dagrl.storage.run_lock import RunLock
lock = RunLock(Folder(sys.argv[1]))
print("held", flush=True)
time.sleep(60)
"""


def holder(url: str) -> subprocess.Popen:
    process = subprocess.Popen([sys.executable, "-c", HOLD, url], stdout=subprocess.PIPE, text=True)
    assert process.stdout is not None
    assert process.stdout.readline() == "held\n"
    return process


@pytest.mark.parametrize("kind", ["local", "s3"])
def test_a_living_run_is_named_and_a_killed_one_is_not_in_the_way(
    kind: str, tmp_path: Path, request: pytest.FixtureRequest
) -> None:
    url = str(tmp_path) if kind == "local" else f"{request.getfixturevalue('s3_bucket')}/{tmp_path.name}"
    process = holder(url)
    try:
        for _ in range(2):
            with pytest.raises(ConfigError, match=f"is in use by process {process.pid} on "):
                RunLock(Folder(url))
        process.send_signal(signal.SIGKILL)
        process.wait()
        assert Folder(url).exists(LOCK)
        lock = RunLock(Folder(url))
        assert json.loads(Folder(url).read(LOCK))["pid"] == os.getpid() if kind == "s3" else True
        lock.release()
        assert not Folder(url).exists(LOCK)
    finally:
        process.kill()


def test_the_same_process_is_refused_too_and_loses_nothing_by_it(any_url: str) -> None:
    Folder(any_url).make()
    lock = RunLock(Folder(any_url))
    for _ in range(2):
        with pytest.raises(ConfigError, match="is in use by process"):
            RunLock(Folder(any_url))
    if "://" not in any_url:
        code = HOLD.replace("time.sleep(60)", "")
        other = subprocess.run([sys.executable, "-c", code, any_url], capture_output=True, text=True)
        assert f"is in use by process {os.getpid()}" in other.stderr
    lock.release()
    lock.release()
    RunLock(Folder(any_url)).release()


def test_a_child_of_the_run_does_not_keep_the_lock(tmp_path: Path) -> None:
    lock = RunLock(Folder(str(tmp_path)))
    child = subprocess.Popen([sys.executable, "-c", "input()"], stdin=subprocess.PIPE, close_fds=False)
    lock.release()
    RunLock(Folder(str(tmp_path))).release()
    child.kill()
    child.wait()


def test_a_record_of_another_host_holds_until_it_is_removed() -> None:
    folder = Folder("memory://other_host")
    record = {"pid": 1, "host": "elsewhere", "started": "x 1", "since": "2026-01-01T00:00:00+00:00"}
    folder.write(LOCK, json.dumps(record).encode())
    with pytest.raises(ConfigError, match=f"remove `memory://other_host/{LOCK}`"):
        RunLock(folder)
    folder.remove(LOCK)
    RunLock(folder).release()


def test_a_later_process_with_the_same_number_is_another() -> None:
    folder = Folder("memory://same_number")
    RunLock(folder)
    record = json.loads(folder.read(LOCK))
    folder.write(LOCK, json.dumps({**record, "started": "another boot 1"}).encode())
    RunLock(folder).release()
