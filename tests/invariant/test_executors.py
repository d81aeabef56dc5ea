"""The same run wherever its ops run: in this process, on Ray, in colocated and in separate groups."""

from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file
from support import edited_pipeline, event_lines, load_grpo, metrics_lines

from dagrl.executor.base import Runtime
from dagrl.executor.local import LocalRuntime
from dagrl.executor.ray import RayRuntime
from dagrl.trainer.loop import run


@pytest.fixture(scope="module")
def ray_runtime(one_thread_each: None) -> RayRuntime:
    return RayRuntime(deadline=120.0)


def train(runtime: Runtime, out: Path, steps: int, file: Path | None = None, **values: Any) -> Path:
    pipelines = load_grpo(**values) if file is None else load_grpo(file, **values)
    run(pipelines.pipelines, out=str(out), steps=steps, runtime=runtime)
    return out


def weights(folder: Path) -> dict[str, torch.Tensor]:
    return load_file(folder / "model" / "model.safetensors")


def assert_identical(left: Path, right: Path) -> None:
    assert metrics_lines(left) == metrics_lines(right)
    other = weights(right)
    assert all(torch.equal(tensor, other[name]) for name, tensor in weights(left).items())


@pytest.mark.long
def test_one_worker_on_ray_is_this_process_bit_for_bit(ray_runtime: RayRuntime, tmp_path: Path) -> None:
    values = {"precision": "fp32", "eval_every": 5}
    here = train(LocalRuntime(), tmp_path / "local", 10, **values)
    there = train(ray_runtime, tmp_path / "ray", 10, workers=1, **values)
    assert_identical(here, there)


@pytest.mark.long
def test_two_workers_twice_are_identical_whether_ref_shares_their_processes_or_not(
    ray_runtime: RayRuntime, tmp_path: Path
) -> None:
    apart = edited_pipeline(
        tmp_path,
        ("    ref = WorkerGroup(\"ref\", policy(cfg.model, precision=cfg.precision), pool=actor.pool)",
         "    side = ResourcePool(\"side\", process_on_nodes=[cfg.workers])\n"
         "    ref = WorkerGroup(\"ref\", policy(cfg.model, precision=cfg.precision), pool=side)"),
    )  # fmt: skip
    values = {"precision": "fp32", "workers": 2, "mini_batch_size": 16}
    first = train(ray_runtime, tmp_path / "first", 4, **values)
    again = train(ray_runtime, tmp_path / "again", 4, **values)
    separate = train(ray_runtime, tmp_path / "separate", 4, file=apart, **values)
    assert_identical(first, again)
    assert_identical(first, separate)


@pytest.mark.long
def test_the_driver_sees_row_numbers_and_lengths_but_no_column(ray_runtime: RayRuntime, tmp_path: Path) -> None:
    """At most 64 bytes a row and step, though every update here moves rows between the ranks."""
    train(ray_runtime, tmp_path / "run", 3, workers=2, batch_size=16, mini_batch_size=16)
    ops = [event for event in event_lines(tmp_path / "run") if event["event"] == "OpFinished"]
    steps = [event for event in ops if event["pipeline"] == "grpo"]
    rows = 3 * 16 * 4
    assert 0 < sum(event["driver_bytes"] for event in steps) <= 64 * rows
    moved = {event["op"]: event["driver_bytes"] for event in steps}
    assert moved["update_policy"] > moved["verify"]


@pytest.mark.long
def test_two_workers_learn_what_one_learns(ray_runtime: RayRuntime, tmp_path: Path) -> None:
    """Rounding alone differs, over one step."""
    one = train(ray_runtime, tmp_path / "one", 1, precision="fp32", workers=1)
    two = train(ray_runtime, tmp_path / "two", 1, precision="fp32", workers=2)
    other = weights(two)
    assert max((tensor - other[name]).abs().max() for name, tensor in weights(one).items()) <= 1e-6
    for mine, theirs in zip(metrics_lines(one), metrics_lines(two), strict=True):
        assert mine.pop("pipeline") == theirs.pop("pipeline")
        assert mine == pytest.approx(theirs, rel=1e-5, abs=1e-6, nan_ok=True)
