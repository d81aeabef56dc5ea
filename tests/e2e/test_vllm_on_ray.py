"""Engines of vLLM in Ray's processes: one over two of them, and those of a group that follows the trainer."""

from pathlib import Path

import pytest
from support import metrics_lines

pytest.importorskip("vllm")

from dagrl import Pipeline, ResourcePool, WorkerGroup, adamw, policy, vllm
from dagrl.executor.ray import RayRuntime
from dagrl.nodes import generate, grpo_advantage, old_logprob, ppo_clip, prompts, report, update_policy, verify
from dagrl.trainer.loop import run

pytestmark = [pytest.mark.long, pytest.mark.timeout(600)]


@pytest.fixture(scope="module")
def ray_runtime(one_thread_each: None) -> RayRuntime:
    return RayRuntime(deadline=240.0)


def grpo(*, processes: int, tensor_parallel: int, apart: bool) -> tuple[Pipeline, Pipeline]:
    """Steps that move the weights, and an evaluation; ``apart`` has one process train and the others generate."""
    engine = vllm(kv_cache_gib=0.1, tensor_parallel=tensor_parallel)
    optimizer = adamw(lr=5e-3)
    if apart:
        trained = policy("zoo:tiny", optimizer=optimizer, precision="fp32")
        actor = WorkerGroup("actor", trained, pool=ResourcePool("main", [1]))
        drawn = policy("zoo:tiny", precision="fp32", rollout=engine)
        sampler = WorkerGroup("rollout", drawn, pool=ResourcePool("far", [processes]), follows=actor)
    else:
        both = policy("zoo:tiny", optimizer=optimizer, precision="fp32", rollout=engine)
        actor = sampler = WorkerGroup("actor", both, pool=ResourcePool("main", [processes]))
    with Pipeline("grpo") as step:
        batch = prompts(data="zoo:larger", batch_size=8, n=4)
        rows = generate(sampler, batch, max_new_tokens=8)
        old = old_logprob(actor, rows)
        update_policy(actor, rows, old, grpo_advantage(rows, verify(batch, rows)), loss=ppo_clip(eps=0.2))
    with Pipeline("eval", every=1) as held_out:
        batch = prompts(data="zoo:larger", split="test", batch_size=16)
        report(verify(batch, generate(sampler, batch, max_new_tokens=8, temperature=0.0)))
    return step, held_out


def gaps(out: Path) -> list[float]:
    return [line["rollout/logprob_gap"] for line in metrics_lines(out) if line["pipeline"] == "grpo"]


@pytest.mark.parametrize("apart", [False, True], ids=["together", "apart"])
def test_one_engine_over_two_processes_generates_from_the_weights_of_the_step_before(
    *, apart: bool, ray_runtime: RayRuntime, tmp_path: Path
) -> None:
    run(grpo(processes=2, tensor_parallel=2, apart=apart), out=str(tmp_path), steps=3, runtime=ray_runtime)
    assert len(gaps(tmp_path)) == 3
    assert max(gaps(tmp_path)) < 1e-3


def test_a_follower_on_ray_generates_what_the_trainer_would_here(ray_runtime: RayRuntime, tmp_path: Path) -> None:
    run(grpo(processes=1, tensor_parallel=1, apart=False), out=str(tmp_path / "together"), steps=2)
    run(grpo(processes=1, tensor_parallel=1, apart=True), out=str(tmp_path / "apart"), steps=2, runtime=ray_runtime)
    assert max(gaps(tmp_path / "apart")) < 1e-3
    together, others = (metrics_lines(tmp_path / name) for name in ("together", "apart"))
    assert [line["pipeline"] for line in others] == ["eval", "grpo", "eval", "grpo", "eval"]
    for mine, theirs in zip(together, others, strict=True):
        assert mine["reward/mean"] == theirs["reward/mean"]
