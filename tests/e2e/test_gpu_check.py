"""tests/gpu/check.sh: it skips itself without a CUDA device, and its checks work."""

import subprocess

import pytest
import torch
from support import ROOT


@pytest.mark.long
def test_the_checks_run_on_the_cpu_too():
    done = subprocess.run(
        ["bash", "tests/gpu/check.sh", "--device", "cpu"], cwd=ROOT, capture_output=True, text=True, check=False
    )
    assert done.returncode == 0, done.stderr
    rows = [line.split("|")[1:-1] for line in done.stdout.splitlines() if line.startswith("| ")]
    assert len(rows) >= 7
    assert all(row[-1].strip().startswith("holds") for row in rows[1:])


@pytest.mark.skipif(torch.cuda.is_available(), reason="there is a CUDA device")
def test_without_a_cuda_device_it_skips_itself():
    done = subprocess.run(["bash", "tests/gpu/check.sh"], cwd=ROOT, capture_output=True, text=True, check=True)
    assert done.stdout == "skipped: no CUDA device\n"
