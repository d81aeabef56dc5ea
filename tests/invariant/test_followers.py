"""Rollout and training in different processes: the numbers are those of one group that does both."""

import shutil
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file
from support import edited_pipeline, event_lines, load_grpo, metrics_lines

from dagrl import Pipeline, ResourcePool, WorkerGroup, adamw, policy
from dagrl.executor.base import Runtime
from dagrl.executor.local import LocalRuntime
from dagrl.executor.ray import RayRuntime
from dagrl.nodes import generate, prompts, report, verify
from dagrl.storage.segments import read_lines
from dagrl.trainer.loop import run
from dagrl.trainer.saving import Saving

APART = (
    (
        "    ref = WorkerGroup(",
        '    far = ResourcePool("far", process_on_nodes=[cfg.workers])\n'
        '    sampler = WorkerGroup("rollout", policy(cfg.model, precision=cfg.precision), pool=far, follows=actor)\n'
        "    ref = WorkerGroup(",
    ),
    ("rollout = generate(actor,", "rollout = generate(sampler,"),
    ("held_out(cfg, actor)", "held_out(cfg, sampler)"),
)


@pytest.fixture(scope="module")
def ray_runtime(one_thread_each: None) -> RayRuntime:
    return RayRuntime(deadline=120.0)


def train(out: Path, file: Path | None, runtime: Runtime | None = None, *, steps: int = 3, **values: Any) -> Path:
    """Some steps at a learning rate that moves the weights, and an evaluation before and after."""
    given = {"precision": "fp32", "lr": 1e-2, **values}
    pipelines = (load_grpo(**given) if file is None else load_grpo(file, **given)).pipelines
    run(pipelines, out=str(out), steps=steps, runtime=runtime or LocalRuntime())
    return out


def without_noise(line: dict[str, Any]) -> dict[str, Any]:
    """A copy of the weights lies elsewhere in memory, which moves the last bit of a log-prob."""
    return {name: value for name, value in line.items() if not name.startswith("rollout/logprob_gap")}


def assert_identical(left: Path, right: Path) -> None:
    assert [*map(without_noise, metrics_lines(left))] == [*map(without_noise, metrics_lines(right))]
    weights, others = (load_file(each / "model" / "model.safetensors") for each in (left, right))
    assert all(torch.equal(tensor, others[name]) for name, tensor in weights.items())


@pytest.mark.parametrize("precision", ["fp32", "bf16"])
def test_a_follower_in_this_process_changes_no_number(precision: str, tmp_path: Path) -> None:
    together = train(tmp_path / "together", None, precision=precision)
    followed = train(tmp_path / "followed", edited_pipeline(tmp_path, *APART), precision=precision)
    assert_identical(together, followed)
    synced = [each["group"] for each in event_lines(followed) if each["event"] == "WeightsSynced"]
    assert synced == ["rollout"] * 3
    timed = [line for line in read_lines(str(followed), "metrics") if "time/sync_rollout" in line]
    assert [line["step"] for line in timed] == [1, 2, 3]


def test_a_leader_that_is_offloaded_feeds_its_follower(tmp_path: Path) -> None:
    together = train(tmp_path / "together", None)
    away = ("precision=cfg.precision, rollout=cfg.rollout)", "precision=cfg.precision, offload=True)")
    followed = train(tmp_path / "followed", edited_pipeline(tmp_path, *APART, away))
    assert_identical(together, followed)


@pytest.mark.parametrize("offload", [False, True])
def test_a_group_whose_leader_is_not_in_the_run_has_its_own_weights(tmp_path: Path, *, offload: bool) -> None:
    """What only evaluates never trains, and draws from what the files say."""
    pool = ResourcePool("main", [1])
    trained = WorkerGroup("actor", policy("zoo:tiny", optimizer=adamw(lr=1e-3), precision="fp32"), pool=pool)
    records = []
    for follows in (None, trained):
        spec = policy("zoo:tiny", precision="fp32", offload=offload and follows is not None)
        sampler = WorkerGroup("sampler", spec, pool=pool, follows=follows)
        with Pipeline("look") as look:
            batch = prompts(data="zoo:larger", batch_size=4, n=2)
            report(verify(batch, generate(sampler, batch, max_new_tokens=4)))
        records += run([look], out=str(tmp_path / str(follows is None)), steps=1).records
    assert records[0].metrics == records[1].metrics


@pytest.mark.parametrize("precision", ["fp32", "bf16"])
def test_a_resumed_follower_has_the_weights_that_were_saved(precision: str, tmp_path: Path) -> None:
    """A follower saves nothing: it generates from what its leader has loaded."""
    file = edited_pipeline(tmp_path, *APART)
    whole = train(tmp_path / "whole", file, precision=precision)
    pipelines = load_grpo(file, precision=precision, lr=1e-2).pipelines
    run(pipelines, out=str(tmp_path / "parts"), steps=3, saving=Saving(every=2))
    for name in ("checkpoints/step_000003", "model"):
        shutil.rmtree(tmp_path / "parts" / name)
    resumed = run(pipelines, out=str(tmp_path / "parts"), steps=3, resume="auto")
    assert resumed.resumed_from == 2
    assert_identical(whole, tmp_path / "parts")


@pytest.mark.long
def test_weights_travel_between_processes_on_ray(ray_runtime: RayRuntime, tmp_path: Path) -> None:
    """One process trains, another generates, over three syncs: the numbers of one process that does both."""
    together = train(tmp_path / "together", None)
    followed = train(tmp_path / "followed", edited_pipeline(tmp_path, *APART), ray_runtime, workers=1)
    assert_identical(together, followed)


@pytest.mark.long
def test_a_trainer_of_two_shares_feeds_two_rollouts(ray_runtime: RayRuntime, tmp_path: Path) -> None:
    """Every rank of the trainer holds half of each tensor; bf16 rollouts take them in small buckets."""
    split = ("optimizer=optimizer, precision=cfg.precision", 'optimizer=optimizer, precision="fp32", parallel="fsdp"')
    file = edited_pipeline(tmp_path, *APART, split)
    out = train(tmp_path / "two", file, ray_runtime, workers=2, precision="bf16")
    lines = [line for line in metrics_lines(out) if "rollout/logprob_gap" in line]
    assert len(lines) == 3
    assert all(line["rollout/logprob_gap"] < 0.05 for line in lines)
