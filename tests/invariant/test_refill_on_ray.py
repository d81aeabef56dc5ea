"""A run with a refill block on Ray: the same rounds and numbers as in this process, and as when it is resumed."""

import signal
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file
from support import ROOT, metrics_lines

from dagrl.cli.pipeline_file import load_pipelines
from dagrl.executor.base import Runtime
from dagrl.executor.local import LocalRuntime
from dagrl.executor.ray import RayRuntime
from dagrl.trainer.loop import run
from dagrl.trainer.records import Record
from dagrl.trainer.stopping import StopRequest

SMALL = {"batch_size": 7, "groups": 5, "max_rounds": 3, "precision": "fp32", "mini_batch_size": 8}


def train(runtime: Runtime, out: Path, steps: int, *, workers: int = 0, stop_after: int = 0) -> Path:
    values: dict[str, Any] = {**SMALL, "workers": workers}
    pipelines = load_pipelines(str(ROOT / "pipelines/dapo.py"), {key: str(value) for key, value in values.items()})
    stop = StopRequest()

    def on_record(record: Record) -> None:
        if record.step == stop_after:
            stop.signal = signal.SIGTERM

    given: dict[str, Any] = {"resume": "auto", "runtime": runtime, "stop": stop, "on_record": on_record}
    run(pipelines.pipelines[:1], out=str(out), steps=steps, **given)
    return out


def weights(folder: Path) -> dict[str, torch.Tensor]:
    return load_file(folder / "model" / "model.safetensors")


def assert_identical(left: Path, right: Path) -> None:
    assert metrics_lines(left) == metrics_lines(right)
    other = weights(right)
    assert all(torch.equal(tensor, other[name]) for name, tensor in weights(left).items())


@pytest.mark.long
def test_workers_change_neither_rounds_nor_numbers(
    ray_session: object, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """One worker is this process bit for bit, two are two again however often they stop, and differ by rounding."""
    monkeypatch.setenv("OMP_NUM_THREADS", "1")
    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    try:
        ray = RayRuntime(deadline=120.0)
        local = train(LocalRuntime(), tmp_path / "local", 3)
        assert_identical(local, train(ray, tmp_path / "one", 3, workers=1))
        two = train(ray, tmp_path / "two", 3, workers=2)
        train(ray, tmp_path / "cut", 3, workers=2, stop_after=1)
        assert_identical(two, train(ray, tmp_path / "cut", 3, workers=2))
    finally:
        torch.set_num_threads(threads)
    mine, theirs = metrics_lines(local)[0], metrics_lines(two)[0]
    assert mine.pop("pipeline") == theirs.pop("pipeline")
    assert mine == pytest.approx(theirs, rel=1e-5, abs=1e-6)
    assert sum(line["refill/rounds"] for line in metrics_lines(local)) > 3
