"""dagrl's GRPO step against TRL's GRPOTrainer: the same model, prompts, batch, lengths and update.

``python -m tests.bench.versus_trl``. TRL lives in a venv of its own, made at the first run. The sides take turns in
processes of their own, and each measures itself around its steady steps. Prints one JSON line last.
"""

import argparse
import dataclasses
import json
import os
import statistics
import subprocess
import sys
import tempfile
from importlib.metadata import version
from pathlib import Path
from typing import Any

from tests.bench.__main__ import ROOT, WORK
from tests.bench.trl_grpo import Meter, Work

PINS = ["trl==1.16.0", "accelerate==1.15.0", "datasets==5.2.0"]
SHARED = ("torch", "transformers", "tokenizers", "numpy")  # of the versions that dagrl runs with


def main() -> None:
    """Measure and print."""
    parser = argparse.ArgumentParser(description=__doc__, prog="python -m tests.bench.versus_trl")
    parser.add_argument("--venv", type=Path, default=ROOT / "build/trl-venv", help="TRL's; made if it is not there")
    parser.add_argument("--pairs", type=int, default=3)
    parser.add_argument("--steps", type=int, default=20, help="measured steps of each side in a pair")
    parser.add_argument("--threads", type=int, default=1)
    options = parser.parse_args()
    venv = options.venv.absolute()
    make_venv(venv)
    commands = {
        "trl": [str(venv / "bin/python"), "tests/bench/trl_grpo.py"],
        "dagrl": [sys.executable, "-c", "from tests.bench.versus_trl import run_dagrl; run_dagrl()"],
    }
    sides: dict[str, list[dict[str, float]]] = {name: [] for name in commands}
    with tempfile.TemporaryDirectory() as folder:
        work = make_work(Path(folder), options.steps, options.threads)
        for pair in range(options.pairs):
            for name in sorted(commands, reverse=pair % 2 == 0):
                sides[name].append(run_side(commands[name], work))
                print(f"pair {pair + 1} {name:5} {sides[name][-1]}", flush=True)
    print(json.dumps(summary(sides, work)))


def make_venv(folder: Path) -> None:
    """Install TRL and what it needs, unless these versions are there."""
    wanted = [*PINS, *(f"{name}=={version(name).split('+')[0]}" for name in SHARED)]
    ready = folder / ".ready"
    if ready.exists() and ready.read_text().split() == wanted:
        return
    subprocess.run([sys.executable, "-m", "venv", str(folder)], check=True)
    subprocess.run([str(folder / "bin/python"), "-m", "pip", "install", "--quiet", *wanted], check=True)
    ready.write_text("\n".join(wanted))


def make_work(folder: Path, steps: int, threads: int) -> Work:
    """Write as many prompts as the steps take: each side sees each of them once, in an order of its own."""
    from dagrl.zoo import model_folder, open_task

    data = folder / "train.jsonl"
    settings: dict[str, Any] = {**WORK, "steps": steps, "threads": threads}
    work = Work(model=str(model_folder("tiny")), data=str(data), **settings)
    rows = open_task("larger", "train")[: work.batch_size * (work.warm + work.steps)]
    data.write_text("".join(json.dumps({"prompt": row.prompt, "answer": row.answer}) + "\n" for row in rows))
    return work


def run_side(command: list[str], work: Work) -> dict[str, float]:
    """What one process of a side reports."""
    threads = {name: str(work.threads) for name in ("OMP_NUM_THREADS", "MKL_NUM_THREADS")}
    environment = {**os.environ, **threads, "GOMP_SPINCOUNT": "1000", "HF_HUB_OFFLINE": "1"}
    command = [*command, json.dumps(dataclasses.asdict(work))]
    done = subprocess.run(command, cwd=ROOT, env=environment, capture_output=True, text=True)
    if done.returncode:
        sys.exit(f"{command[:2]} failed:\n{done.stderr[-4000:]}")
    report: dict[str, float] = json.loads(done.stdout.splitlines()[-1])
    return {name: round(value, 4) for name, value in report.items()}


def run_dagrl() -> None:
    """dagrl's side, in a process of its own: the step of pipelines/grpo.py, without its evaluation."""
    import torch

    from dagrl.cli.pipeline_file import load_pipelines
    from dagrl.trainer.loop import run
    from dagrl.trainer.records import Record

    work = Work(**json.loads(sys.argv[1]))
    torch.set_num_threads(work.threads)
    meter = Meter(work)

    def on_record(record: Record) -> None:
        meter.rewards.append(record.metrics["reward/mean"])
        meter.after(record.step)

    values = {name: str(value) for name, value in dataclasses.asdict(work).items() if name not in ("threads", "warm")}
    pipelines = load_pipelines(str(ROOT / "pipelines/grpo.py"), values).pipelines[:1]
    with tempfile.TemporaryDirectory() as folder:
        run(pipelines, out=f"{folder}/run", steps=work.warm + work.steps, on_record=on_record)
    meter.print_report()


def summary(sides: dict[str, list[dict[str, float]]], work: Work) -> dict[str, object]:
    """Medians of each side, and how much of dagrl's time TRL's is."""
    report: dict[str, object] = {"bench": "versus_trl", "pins": PINS, "work": WORK, "threads": work.threads}
    report |= {"steps": work.steps, "pairs": len(sides["dagrl"]), "load1": os.getloadavg()[0]}
    for name, runs in sides.items():
        report[name] = {key: round(statistics.median(run[key] for run in runs), 4) for key in runs[0]}
    for clock in ("cpu", "wall"):
        trl, dagrl = ([run[f"{clock}_s_per_step"] for run in sides[name]] for name in ("trl", "dagrl"))
        ratio = statistics.median(trl) / statistics.median(dagrl)
        by_pair = [round(a / b, 3) for a, b in zip(trl, dagrl, strict=True)]
        print(f"TRL / dagrl in {clock} seconds: {ratio:.2f} (by pair {by_pair})")
        report[f"trl_over_dagrl_{clock}"] = round(ratio, 3)
        report[f"trl_over_dagrl_{clock}_by_pair"] = by_pair
    return report


if __name__ == "__main__":
    main()
