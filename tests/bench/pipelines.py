"""``make bench-pipelines``: every shipped pipeline with its defaults on two workers: what it learns, and how fast.

Prints a line for each, as the README's table has it: mean sampled reward of the first and last ten steps, greedy reward
on held-out prompts before and after, and the seconds of the whole command.
"""

import argparse
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from statistics import fmean
from typing import Any

from dagrl.storage.segments import read_lines

ROOT = Path(__file__).resolve().parents[2]


def measured(file: Path, folder: Path, seed: int) -> str:
    """Run the pipeline; its line of the table."""
    out = folder / file.stem
    command = ["run", str(file), "--set", "workers=2", "--seed", str(seed), "--ui", "quiet", "--out", str(out)]
    began = time.monotonic()
    subprocess.run([sys.executable, "-m", "dagrl.cli", *command], cwd=ROOT, check=True, stdout=subprocess.DEVNULL)
    seconds = time.monotonic() - began
    lines = read_lines(str(out), "metrics")
    held_out = [line["reward/mean"] for line in lines if line["pipeline"] == "eval"]
    sampled = _sampled(lines)
    curve = f"{fmean(sampled[:10]):.3f} → {fmean(sampled[-10:]):.3f}" if sampled else "none"
    return f"| {file.stem} | {curve} | {held_out[0]:.3f} → {held_out[-1]:.3f} | {seconds:.0f} |"


def _sampled(lines: list[dict[str, Any]]) -> list[float]:
    """The correctness reward of each step, of all rows that were drawn; none where nothing is sampled."""
    names = ("verify/reward/mean", "reward/mean")
    steps = [line for line in lines if line["pipeline"] != "eval"]
    name = next((name for name in names if steps and name in steps[0]), None)
    return [] if name is None else [line[name] for line in steps]


def main() -> None:
    """Measure the chosen pipelines one after the other."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("names", nargs="*", help="pipelines by name (default: all)")
    parser.add_argument("--seed", type=int, default=0)
    options = parser.parse_args()
    files = sorted((ROOT / "pipelines").glob("*.py"))
    print("| pipeline | sampled reward | held-out reward | seconds |\n|---|---|---|---|", flush=True)
    with tempfile.TemporaryDirectory() as folder:
        for file in files:
            if not options.names or file.stem in options.names:
                print(measured(file, Path(folder), options.seed), flush=True)


if __name__ == "__main__":
    main()
