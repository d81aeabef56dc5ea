"""What a call on a worker group costs on Ray, beside what the same work costs without one.

``python -m tests.bench.controller [--ranks N] [--mib M]``. Medians of one run; every number has a floor beside it: an
actor that does nothing, `ray.put` of the same bytes, a copy in memory. The last column is what the project asks for.
"""

import argparse
import statistics
import sys
import time
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import numpy as np
import ray
import torch

from dagrl.controller import (
    Dispatch,
    RayClassWithInitArgs,
    RayResourcePool,
    RayWorkerGroup,
    Worker,
    register,
    ship_by_value,
    start_ray,
)
from dagrl.data import DataProto

ship_by_value(sys.modules[__name__])
MIB = 1 << 20


class Echo(Worker):
    """Methods that do next to nothing."""

    @register(Dispatch.ONE_TO_ALL)
    def nothing(self, value: Any = None) -> None: ...

    @register(Dispatch.DP_COMPUTE_PROTO)
    def take(self, data: DataProto) -> None: ...

    @register(Dispatch.DP_COMPUTE_PROTO, blocking=False)
    def make(self, data: DataProto, rows: int, width: int) -> DataProto:
        share = rows // self.world_size
        return DataProto.from_dict({"x": torch.zeros(share, width, dtype=torch.uint8)})

    @register(Dispatch.DP_COMPUTE_PROTO, blocking=False)
    def count(self, data: DataProto) -> DataProto:
        return DataProto.from_dict({"rows": torch.tensor([len(data)])})


class Plain:
    """An actor without a group."""

    def nothing(self) -> None: ...


@dataclass(frozen=True)
class Row:
    """One line: milliseconds of a call, those of its floor, and what it may take."""

    what: str
    ours: float
    floor_of: str
    floor: float
    limit: float | None = None

    def shown(self) -> str:
        """The line."""
        limit = "" if self.limit is None else f"{self.limit:8.2f}  {'ok' if self.ours <= self.limit else 'MISSED'}"
        return f"{self.what:44}{self.ours:9.2f}   {self.floor_of:28}{self.floor:9.2f} {limit}"


def median(action: Callable[[], Any], repeats: int) -> float:
    """The median milliseconds of the action, after one that does not count."""
    action()
    taken: list[float] = []
    for _ in range(repeats):
        begun = time.perf_counter()
        action()
        taken.append(time.perf_counter() - begun)
    return 1e3 * statistics.median(taken)


def batch(mib: int) -> DataProto:
    """Rows of 1 KiB."""
    return DataProto.from_dict({"x": torch.ones(mib * 1024, 1024, dtype=torch.uint8)})


def measure(ranks: int, mib: int) -> list[Row]:
    """All lines."""
    pool = RayResourcePool([ranks], use_gpu=False)
    first: Any = RayWorkerGroup(pool, RayClassWithInitArgs(Echo), name_prefix="first")
    second: Any = RayWorkerGroup(pool, RayClassWithInitArgs(Echo), name_prefix="second")
    plain = [ray.remote(Plain).options(num_cpus=0).remote() for _ in range(ranks)]
    data, raw = batch(mib), np.ones(mib * MIB, dtype=np.uint8)
    for group in (first, second):
        group.take(batch(1))

    noop = median(lambda: ray.get([actor.nothing.remote() for actor in plain]), 200)
    one_to_all = median(first.nothing, 200)
    put = median(lambda: ray.put(raw), 15)
    memcpy = median(raw.copy, 15)
    stored = ray.put(raw)
    by_reference = median(lambda: first.nothing(stored), 50)
    send = median(lambda: first.take(data), 15)
    small = DataProto.from_dict({"x": torch.zeros(ranks, dtype=torch.uint8)})

    def alone() -> None:
        ray.wait(first.make(small, mib * 1024, 1024).futures, num_returns=ranks, fetch_local=False)

    def chain() -> None:
        second.count(first.make(small, mib * 1024, 1024)).get()

    made = first.make(small, mib * 1024, 1024)
    assert made.poll() or made.pending is not None
    ray.wait(made.futures, num_returns=ranks, fetch_local=False)
    forwarded = median(lambda: second.count(made).get(), 30)
    single, double = median(alone, 20), median(chain, 20)
    rows = [
        Row("ONE_TO_ALL", one_to_all, "slowest actor no-op", noop, 1.5 * noop + 1),
        Row(f"call with {mib} MiB as a reference", by_reference, "slowest actor no-op", noop, 1.5 * noop + 1),
        Row(f"first send of {mib} MiB", send, "ray.put of the bytes", put, 1.3 * put),
        Row(f"ray.put of {mib} MiB", put, "memcpy", memcpy),
        Row(f"call that is passed a future of {mib} MiB", forwarded, "slowest actor no-op", noop),
        Row("second of two calls in a chain", double - single, f"the first, {mib} MiB", single, 10.0),
    ]
    for group in (first, second):
        group.kill()
    pool.release()
    return rows


def main() -> None:
    """Measure and print."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--ranks", type=int, default=2)
    parser.add_argument("--mib", type=int, default=64)
    options = parser.parse_args()
    with start_ray(num_cpus=options.ranks):
        print(f"{'milliseconds, medians':44}{'call':>9}   {'floor':28}{'floor':>9}    limit")
        for row in measure(options.ranks, options.mib):
            print(row.shown())


if __name__ == "__main__":
    main()
