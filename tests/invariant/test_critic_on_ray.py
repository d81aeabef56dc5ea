"""A run with a critic on Ray is the run in this process: one worker to the bit, two up to rounding."""

from pathlib import Path
from typing import Any

import pytest
import torch
from critic_cases import make_model
from ppo_cases import ppo_file, scored_by
from safetensors.torch import load_file
from support import metrics_lines

from dagrl.cli.pipeline_file import load_pipelines
from dagrl.executor.base import Runtime
from dagrl.executor.local import LocalRuntime
from dagrl.executor.ray import RayRuntime
from dagrl.trainer.loop import run

pytestmark = pytest.mark.long


def train(runtime: Runtime, file: Path, out: Path, steps: int, **values: Any) -> Path:
    given = {"batch_size": 8, "eval_every": 1000, "precision": "fp32", "mini_batch_size": 4, **values}
    loaded = load_pipelines(str(file), {key: str(value) for key, value in given.items()})
    run(loaded.pipelines[:1], out=str(out), steps=steps, runtime=runtime)
    return out


def test_critic_and_reward_model_on_one_and_two_workers(
    ray_session: object, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("OMP_NUM_THREADS", "1")
    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    folder = make_model(tmp_path / "scorer", "gpt2", "sequence")
    file = ppo_file(tmp_path / "file", *scored_by(folder))
    ray = RayRuntime(deadline=120.0)
    here = train(LocalRuntime(), file, tmp_path / "here", 3)
    one = train(ray, file, tmp_path / "one", 3, workers=1)
    two = train(ray, file, tmp_path / "two", 1, workers=2)
    torch.set_num_threads(threads)
    assert metrics_lines(here) == metrics_lines(one)
    for group in ("actor", "critic"):
        mine, other = (load_file(out / "model" / group / "model.safetensors") for out in (here, one))
        assert all(torch.equal(tensor, other[name]) for name, tensor in mine.items())
    first, second = metrics_lines(here)[0], metrics_lines(two)[0]
    assert first.keys() == second.keys()
    assert first.pop("pipeline") == second.pop("pipeline")
    assert first == pytest.approx(second, rel=1e-4, abs=1e-5, nan_ok=True)
