"""``make bench``: dagrl's GRPO step against a plain loop, interleaved in one process, in CPU seconds.

Prints one JSON line last. Timings are reported here and never decide a test. What each pipeline learns, against a bar
and within a time, is ``make bench-pipelines`` (``tests/bench/pipelines.py``).
"""

import argparse
import json
import os
import resource
import statistics
import subprocess
import sys
import tempfile
import time
from pathlib import Path

os.environ.setdefault("HF_HUB_OFFLINE", "1")
ROOT = Path(__file__).resolve().parents[2]
WORK = {"batch_size": 64, "n": 8, "lr": 2.5e-4, "kl": 0.001, "clip": 0.2}


def measure(rollout: str, *, pairs: int, steps: int, threads: int) -> dict[str, object]:
    """Run dagrl's loop; after every ``steps`` of its steps, the plain loop does as many inside the callback."""
    import torch

    from dagrl.cli.pipeline_file import load_pipelines
    from dagrl.trainer.loop import run
    from dagrl.trainer.records import Record
    from tests.bench.plain_grpo import PlainGrpo

    torch.set_num_threads(threads)
    plain = PlainGrpo(**WORK, rollout=rollout)
    for _ in range(3):
        plain.step()
    mine: list[float] = []
    theirs: list[float] = []
    records: list[Record] = []
    mark = 0.0

    def on_record(record: Record) -> None:
        nonlocal mark
        if record.step == 3:
            mark = time.process_time()
        records.append(record)
        if record.step <= 3 or (record.step - 3) % steps:
            return
        mine.append((time.process_time() - mark) / steps)
        started = time.process_time()
        for _ in range(steps):
            plain.step()
        theirs.append((time.process_time() - started) / steps)
        mark = time.process_time()

    values = {name: str(value) for name, value in WORK.items()}
    pipelines = load_pipelines(str(ROOT / "pipelines/grpo.py"), values).pipelines[:1]
    with tempfile.TemporaryDirectory() as folder:
        run(pipelines, out=f"{folder}/run", steps=3 + pairs * steps, on_record=on_record)
    ops = {op: statistics.median(record.op_seconds[op] for record in records[3:]) for op in records[-1].op_seconds}
    return {
        "plain_rollout": rollout,
        "threads": threads,
        "dagrl_cpu_s_per_step": round(statistics.median(mine), 4),
        "plain_cpu_s_per_step": round(statistics.median(theirs), 4),
        "ratio_of_medians": round(statistics.median(mine) / statistics.median(theirs), 3),
        "median_of_ratios": round(statistics.median(a / b for a, b in zip(mine, theirs, strict=True)), 3),
        "wall_ms_by_node": {op: round(seconds * 1000, 1) for op, seconds in ops.items()},
    }


def compile_seconds() -> float:
    """CPU seconds to compile the GRPO pipelines, imports aside."""
    from dagrl.cli.pipeline_file import load_pipelines
    from dagrl.compiler import compile_pipelines

    pipelines = load_pipelines(str(ROOT / "pipelines/grpo.py")).pipelines
    started = time.process_time()
    compile_pipelines(pipelines)
    return time.process_time() - started


def plan_cpu_seconds(*, tries: int = 5) -> dict[str, float]:
    """CPU seconds of ``dagrl plan pipelines/grpo.py`` beside those of loading torch alone, in turns."""
    plans: list[float] = []
    torch_alone: list[float] = []
    for _ in range(tries):
        plans.append(_cpu_seconds("-m", "dagrl.cli", "plan", "pipelines/grpo.py"))
        torch_alone.append(_cpu_seconds("-c", "import torch"))
    plan, torch = statistics.median(plans), statistics.median(torch_alone)
    return {"plan": round(plan, 2), "import torch": round(torch, 2), "ratio": round(plan / torch, 2)}


def _cpu_seconds(*arguments: str) -> float:
    """Of Python with these arguments, in a process of its own."""
    before = resource.getrusage(resource.RUSAGE_CHILDREN)
    subprocess.run([sys.executable, *arguments], cwd=ROOT, check=True, stdout=subprocess.DEVNULL)
    after = resource.getrusage(resource.RUSAGE_CHILDREN)
    return after.ru_utime + after.ru_stime - before.ru_utime - before.ru_stime


def peak_memory_mb() -> float:
    """Peak resident memory of a run of 5 steps in a process of its own."""
    with tempfile.TemporaryDirectory() as folder:
        script = (
            "import resource, sys\nfrom dagrl.cli.main import cli\n"
            f"cli.main(['run', 'pipelines/grpo.py', '--steps', '5', '--out', '{folder}/run', '--set', 'batch_size=64', "
            "'--set', 'n=8'], standalone_mode=False)\n"
            "print(resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024, file=sys.stderr)"
        )
        done = subprocess.run([sys.executable, "-c", script], cwd=ROOT, check=True, capture_output=True, text=True)
    return float(done.stderr.split()[-1])


def main() -> None:
    """Measure and print."""
    parser = argparse.ArgumentParser(description=__doc__, prog="make bench")
    parser.add_argument("--pairs", type=int, default=5)
    parser.add_argument("--steps", type=int, default=20, help="steps of each side in a pair")
    parser.add_argument("--threads", type=int, default=1)
    options = parser.parse_args()
    report: dict[str, object] = {
        "bench": "grpo_step",
        "work": WORK,
        "load1": os.getloadavg()[0],
        "compile_cpu_s": round(compile_seconds(), 4),
        "plan_cpu_s": plan_cpu_seconds(),
        "peak_rss_mb": round(peak_memory_mb(), 1),
    }
    for rollout in ("engine", "own"):
        side = measure(rollout, pairs=options.pairs, steps=options.steps, threads=options.threads)
        report[f"against_plain_with_{rollout}_rollout"] = side
        print(f"plain loop with {rollout} rollout: {side['ratio_of_medians']} x", flush=True)
    print(json.dumps(report))


if __name__ == "__main__":
    main()
