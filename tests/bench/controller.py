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


class Echo(Worker):
    """Methods that do next to nothing."""

    @register(Dispatch.ONE_TO_ALL)
    def nothing(self, value: Any = None) -> None: ...

    @register(Dispatch.DP_COMPUTE_PROTO, blocking=False)
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

    def nothing(self, value: Any = None) -> None: ...


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


def medians(repeats: int, **actions: Callable[[], Any]) -> dict[str, float]:
    """The median milliseconds of each action; they take turns, so that a neighbour's load meets all alike.

    A function that an action returns is called afterwards, and not timed.
    """
    taken: dict[str, list[float]] = {name: [] for name in actions}
    for turn in range(repeats + 2):
        for name, action in actions.items():
            begun = time.perf_counter()
            after = action()
            seconds = time.perf_counter() - begun
            if callable(after):
                after()
            if turn > 1:
                taken[name].append(seconds)
    return {name: 1e3 * statistics.median(seconds) for name, seconds in taken.items()}


def batch(mib: int) -> DataProto:
    """Rows of 1 KiB."""
    return DataProto.from_dict({"x": torch.ones(mib * 1024, 1024, dtype=torch.uint8)})


def measure(ranks: int, mib: int) -> list[Row]:
    """All lines."""
    pool = RayResourcePool([ranks], use_gpu=False)
    first: Any = RayWorkerGroup(pool, RayClassWithInitArgs(Echo), name_prefix="first")
    second: Any = RayWorkerGroup(pool, RayClassWithInitArgs(Echo), name_prefix="second")
    plain = [ray.remote(Plain).options(num_cpus=0).remote() for _ in range(ranks)]
    data = batch(mib)
    raw = data.batch["x"].numpy()
    for group in (first, second):
        group.take(batch(1)).get()

    stored = ray.put(raw)
    small = DataProto.from_dict({"x": torch.zeros(ranks, dtype=torch.uint8)})

    def make() -> Any:
        return first.make(small, mib * 1024, 1024)

    made = make()
    made.get()
    refs = made.futures
    calls = medians(
        150,
        noop=lambda: ray.get([actor.nothing.remote() for actor in plain]),
        noop_with_reference=lambda: ray.get([actor.nothing.remote(stored) for actor in plain]),
        one_to_all=first.nothing,
        reference=lambda: first.nothing(stored),
    )
    sends = medians(
        20,
        put=lambda: ray.put(raw),
        memcpy=raw.copy,
        send=lambda: first.take(data).get,
        taken=lambda: first.take(data).get(),
        future=lambda: second.take(made).get(),
        future_by_ray=lambda: ray.get([one.take.remote(ref) for one, ref in zip(second.workers, refs, strict=True)]),
    )
    chains = medians(
        20,
        one=lambda: ray.wait(make().futures, num_returns=ranks, fetch_local=False),
        two=lambda: second.count(make()).get(),
    )
    noop, put = calls["noop"], sends["put"]
    added = chains["two"] - chains["one"]
    rows = [
        Row("ONE_TO_ALL", calls["one_to_all"], "slowest actor no-op", noop, 1.5 * noop + 1),
        Row(f"call with {mib} MiB as a reference", calls["reference"], "slowest actor no-op", noop, 1.5 * noop + 1),
        Row("  the same by Ray alone", calls["noop_with_reference"], "slowest actor no-op", noop),
        Row(f"first send of {mib} MiB", sends["send"], "ray.put of the bytes", put, 1.3 * put),
        Row("  until workers have it as tensors of theirs", sends["taken"], "memcpy", sends["memcpy"]),
        Row("  ray.put", put, "memcpy", sends["memcpy"]),
        Row(f"call that takes a future of {mib} MiB", sends["future"], "memcpy", sends["memcpy"]),
        Row("  the same by Ray alone", sends["future_by_ray"], "memcpy", sends["memcpy"]),
        Row("second of two calls in a chain", added, f"the first, {mib} MiB", chains["one"], 10.0),
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
