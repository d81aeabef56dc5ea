"""Groups, futures and pools that outlive the Ray they were made on: they say so, and start no other."""

import os
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[3]
CODE = """
import sys, threading, time
import ray
from dagrl.controller import *
from dagrl.data import DataProto
from dagrl.errors import DagrlError
import torch

class Adder(Worker):
    @register(Dispatch.ONE_TO_ALL)
    def add(self, x):
        return x + self.rank
    @register(Dispatch.DP_COMPUTE_PROTO, blocking=False)
    def later(self, data):
        return data
    @register(Dispatch.ONE_TO_ALL, blocking=False)
    def slowly(self):
        time.sleep(30)

ship_by_value(sys.modules["__main__"])
threading.excepthook = lambda told: print("thread:", told.exc_value)

def told(call):
    try:
        print(call())
    except DagrlError as error:
        print(f"{type(error).__name__}: {error}")

with start_ray(num_cpus=4):
    pool = RayResourcePool([2], use_gpu=False, name_prefix="main")
    group = RayWorkerGroup(pool, RayClassWithInitArgs(Adder), name_prefix="adder")
    group.start_worker_aliveness_check(0.05)
    print(group.add(1))
    batch, slow = group.later(DataProto.from_dict({"x": torch.zeros(2)})), group.slowly()
    batch.get()
    part = DataProtoFuture.concat(batch.futures)

def ask_all():
    for call in (lambda: group.add(1), slow.get, slow.poll, batch.get, batch.poll):
        told(call)
    group.kill()
    pool.release()

if sys.argv[1:]:
    with start_ray(num_cpus=4):
        time.sleep(0.3)
        ask_all()
        group.rebuild()
        print(group.add(5))
else:
    ask_all()
    told(part.get)
    told(part.poll)
print(ray.is_initialized())
"""
GONE = [
    f"WorkerLostError: the process of rank 0 of worker group `adder` (node 127.0.0.1) was lost during `{method}`: {why}"
    for method, why in [
        ("add", "it was ended; `rebuild()` starts another"),
        *((method, "its Ray has ended since") for method in ("slowly", "slowly", "later", "later")),
    ]
]
SHARDS = "DispatchError: the Ray that has the shards of a future has ended: `get()` it before"


@pytest.mark.parametrize("again", [False, pytest.param(True, marks=pytest.mark.long)])
def test_what_outlives_its_ray_says_so_and_starts_no_other(again: bool) -> None:
    done = subprocess.run(
        [sys.executable, "-c", CODE, *(["again"] if again else [])],
        env={**os.environ, "PYTHONPATH": str(ROOT)},
        capture_output=True,
        text=True,
        check=False,
        timeout=100,
    )
    last = ["[5, 6]"] if again else [SHARDS, SHARDS]
    assert (done.stdout.splitlines(), done.stderr) == (["[1, 2]", *GONE, *last, "False"], "")
