"""``make bench-pipelines``: every shipped pipeline with its defaults on two workers: what it learns, and how fast.

Prints the README's table, a line for each: mean sampled reward of the first and last ten steps, greedy reward on
held-out prompts before and after, and the seconds of the whole command. The exit code is 1 if one ends below its bar or
takes `SECONDS` or longer. `smollm2` needs extras and minutes, so it runs only if it is named.
"""

import argparse
import subprocess
import sys
import tempfile
import time
from collections.abc import Sequence
from pathlib import Path
from statistics import fmean
from typing import Any, NamedTuple

from dagrl.storage.segments import read_lines

ROOT = Path(__file__).resolve().parents[2]
SECONDS = 150
HEADER = "| file | sampled | held-out | seconds |\n|---|---|---|---|"
#: The greedy held-out reward that a pipeline must end with; None: any. sft begins with random weights and learns from
#: easy pairs alone: it must come near `zoo:tiny`, which is made like that and has 0.538.
BARS: dict[str, float | None] = {"remax": 0.75, "distill": 0.75, "sft": 0.45, "smollm2": None}
BAR = 0.85
ONLY_BY_NAME = frozenset({"smollm2"})


class Measured(NamedTuple):
    """How a pipeline did: its line of the table, its last held-out reward, and the seconds of the command."""

    name: str
    line: str
    held_out: float
    seconds: float

    def faults(self) -> list[str]:
        """What is not as it should be."""
        bar = BARS.get(self.name, BAR)
        low = bar is not None and not self.held_out >= bar
        return [
            *([f"{self.name} ends with {self.held_out:.3f}, below {bar}"] if low else []),
            *([f"{self.name} takes {self.seconds:.0f} s, not under {SECONDS}"] if self._is_slow() else []),
        ]

    def _is_slow(self) -> bool:
        return self.name not in ONLY_BY_NAME and self.seconds >= SECONDS


def measured(file: Path, folder: Path, seed: int) -> Measured:
    """Run the pipeline."""
    out = folder / file.stem
    command = ["run", str(file), "--set", "workers=2", "--seed", str(seed), "--ui", "quiet", "--out", str(out)]
    began = time.monotonic()
    subprocess.run([sys.executable, "-m", "dagrl.cli", *command], cwd=ROOT, check=True, stdout=subprocess.DEVNULL)
    seconds = time.monotonic() - began
    lines = read_lines(str(out), "metrics")
    held_out = [line["reward/mean"] for line in lines if line["pipeline"] == "eval"]
    sampled = _sampled(lines)
    return Measured(file.stem, table_line(file.stem, sampled, held_out, seconds), held_out[-1], seconds)


def table_line(name: str, sampled: Sequence[float], held_out: Sequence[float], seconds: float) -> str:
    """The table's line of rewards by step and by evaluation; where nothing is sampled, that place is empty."""
    curve = _change(fmean(sampled[:10]), fmean(sampled[-10:])) if sampled else ""
    cells = (name, curve, _change(held_out[0], held_out[-1]), f"{seconds:.0f}")
    return "".join(f"| {cell} " if cell else "| " for cell in cells) + "|"


def _change(before: float, after: float) -> str:
    return " → ".join(f"{share:.3f}".removeprefix("0") for share in (before, after))


def chosen(names: Sequence[str]) -> list[Path]:
    """The pipelines of these names; without any, all but those that run only if they are named."""
    files = sorted((ROOT / "pipelines").glob("*.py"))
    return [file for file in files if (file.stem in names if names else file.stem not in ONLY_BY_NAME)]


def _sampled(lines: list[dict[str, Any]]) -> list[float]:
    """The correctness reward of each step, of all rows that were drawn; none where nothing is sampled."""
    names = ("verify/reward/mean", "reward/mean")
    steps = [line for line in lines if line["pipeline"] != "eval"]
    name = next((name for name in names if steps and name in steps[0]), None)
    return [] if name is None else [line[name] for line in steps]


def main() -> None:
    """Measure the chosen pipelines one after the other."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("names", nargs="*", help="pipelines by name (default: all but smollm2)")
    parser.add_argument("--seed", type=int, default=0)
    options = parser.parse_args()
    faults: list[str] = []
    print(HEADER, flush=True)
    with tempfile.TemporaryDirectory() as folder:
        for file in chosen(options.names):
            found = measured(file, Path(folder), options.seed)
            print(found.line, flush=True)
            faults += found.faults()
    for fault in faults:
        print(fault, file=sys.stderr)
    sys.exit(1 if faults else 0)


if __name__ == "__main__":
    main()
