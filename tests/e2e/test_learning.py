"""The learning bar: the shipped demo teaches the shipped model what it did not know, for three seeds."""

import subprocess
import sys
from pathlib import Path

import pytest
from support import ROOT, metrics_lines


@pytest.mark.long
@pytest.mark.timeout(1200)
@pytest.mark.parametrize("seed", [0, 1, 2])
def test_the_demo_meets_the_learning_bar(tmp_path: Path, seed: int) -> None:
    """Sampled training reward from below .5 to .88; held-out greedy from below .56 to .92; easy pairs keep theirs.

    Start and end of the sampled reward are both means of ten steps: one step of 512 samples is off by some .03.
    """
    command = [sys.executable, "-m", "dagrl.cli", "run", "pipelines/grpo.py", "--executor", "ray", "--set", "workers=2"]
    line = [*command, "--seed", str(seed), "--out", str(tmp_path / "run")]
    done = subprocess.run(line, cwd=ROOT, capture_output=True, text=True, timeout=1100)
    assert done.returncode == 0, done.stderr
    lines = metrics_lines(tmp_path / "run")
    sampled = [line["reward/mean"] for line in lines if line["pipeline"] == "grpo"]
    held_out = [line for line in lines if line["pipeline"] == "eval"]
    start, end = held_out[0], held_out[-1]
    assert sum(sampled[:10]) / 10 < 0.5
    assert sum(sampled[-10:]) / 10 >= 0.88
    assert start["reward/mean"] < 0.56
    assert end["reward/mean"] >= 0.92
    assert end["reward/mean/larger/easy"] >= start["reward/mean/larger/easy"] - 0.03
    assert end["reward/mean/larger/hard"] > start["reward/mean/larger/hard"] + 0.3
