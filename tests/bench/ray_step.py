"""dagrl's step on Ray, 2 workers of one thread, against the plain loop: 2 threads, and 2 processes of one thread.

``python -m tests.bench.ray_step``. The three take turns, block after block, in wall time; the others sleep meanwhile.
Prints one JSON line last, with the bytes that the driver saw and what the event log costs.
"""

import argparse
import json
import os
import socket
import statistics
import subprocess
import sys
import tempfile
import time
from typing import Any

from tests.bench.__main__ import ROOT, WORK


class PlainSide:
    """The plain loop in ``processes`` processes of ``threads`` threads."""

    def __init__(self, processes: int, threads: int, rollout: str) -> None:
        with socket.socket() as probe:
            probe.bind(("127.0.0.1", 0))
            port = probe.getsockname()[1]
        environment = {**os.environ, "OMP_NUM_THREADS": str(threads), "GOMP_SPINCOUNT": "1000"}
        command = [sys.executable, "-m", "tests.bench.plain_process"]
        self._processes = [
            subprocess.Popen(
                [*command, *map(str, (rank, processes, port, threads)), rollout],
                stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True, cwd=ROOT, env=environment,
            )
            for rank in range(processes)
        ]  # fmt: skip
        for process in self._processes:
            assert process.stdout is not None
            assert process.stdout.readline().strip() == "ready"

    def seconds(self, steps: int) -> float:
        """Wall seconds of so many steps."""
        for process in self._processes:
            assert process.stdin is not None
            print(steps, file=process.stdin, flush=True)
        return max(float(process.stdout.readline()) for process in self._processes if process.stdout is not None)

    def close(self) -> None:
        """End the processes."""
        for process in self._processes:
            assert process.stdin is not None
            process.stdin.close()
            process.wait(timeout=30)


def measure(*, blocks: int, steps: int, rollout: str) -> dict[str, Any]:
    """Blocks of steps in turn."""
    from dagrl.cli.pipeline_file import load_pipelines
    from dagrl.executor.ray import RayRuntime
    from dagrl.storage.segments import read_lines
    from dagrl.trainer.loop import run
    from dagrl.trainer.records import Record

    sides = {"plain_2_threads": PlainSide(1, 2, rollout), "plain_2_processes": PlainSide(2, 1, rollout)}
    for side in sides.values():
        side.seconds(3)
    seconds: dict[str, list[float]] = {"dagrl_ray_2_workers": [], **{name: [] for name in sides}}
    records: list[Record] = []
    mark = 0.0

    def on_record(record: Record) -> None:
        nonlocal mark
        records.append(record)
        if record.step > 3 and (record.step - 3) % steps == 0:
            seconds["dagrl_ray_2_workers"].append((time.perf_counter() - mark) / steps)
            for name, side in sides.items():
                seconds[name].append(side.seconds(steps) / steps)
        if record.step >= 3 and (record.step - 3) % steps == 0:
            mark = time.perf_counter()

    values = {**{name: str(value) for name, value in WORK.items()}, "workers": "2"}
    pipelines = load_pipelines(str(ROOT / "pipelines/grpo.py"), values).pipelines[:1]
    with tempfile.TemporaryDirectory() as folder, RayRuntime() as runtime:
        run(pipelines, out=f"{folder}/run", steps=3 + blocks * steps, runtime=runtime, on_record=on_record)
        events = read_lines(f"{folder}/run", "events")
    rows = (3 + blocks * steps) * WORK["batch_size"] * WORK["n"]
    driver_bytes = sum(event["driver_bytes"] for event in events if event["event"] == "OpFinished")
    log_seconds = log_cost(events) / (3 + blocks * steps)
    for side in sides.values():
        side.close()
    medians = {name: statistics.median(values) for name, values in seconds.items()}
    fastest = min(medians["plain_2_threads"], medians["plain_2_processes"])
    ops = {op: statistics.median(record.op_seconds[op] for record in records[3:]) for op in records[-1].op_seconds}
    return {
        "plain_rollout": rollout,
        "s_per_step": {name: round(value, 4) for name, value in medians.items()},
        "driver_bytes_per_row": round(driver_bytes / rows, 1),
        "event_log_share": round(log_seconds / medians["dagrl_ray_2_workers"], 5),
        "ray_over_fastest_plain": round(medians["dagrl_ray_2_workers"] / fastest, 3),
        "wall_ms_by_node": {op: round(value * 1000, 1) for op, value in ops.items()},
    }


def log_cost(events: list[dict[str, Any]]) -> float:
    """CPU seconds to write these events to a log again."""
    from dagrl.storage.run_folder import RunFolder

    with tempfile.TemporaryDirectory() as aside, RunFolder(f"{aside}/run") as folder:
        folder.make()
        folder.begin({})
        started = time.process_time()
        for event in events:
            folder.append("events", event)
        return time.process_time() - started


def main() -> None:
    """Measure and print."""
    parser = argparse.ArgumentParser(description=__doc__, prog="python -m tests.bench.ray_step")
    parser.add_argument("--blocks", type=int, default=5)
    parser.add_argument("--steps", type=int, default=20, help="steps of each side in a block")
    parser.add_argument("--rollout", choices=["engine", "own"], default="own", help="of the plain loop")
    options = parser.parse_args()
    print(json.dumps({"bench": "ray_step", "load1": os.getloadavg()[0], **measure(**vars(options))}))


if __name__ == "__main__":
    main()
