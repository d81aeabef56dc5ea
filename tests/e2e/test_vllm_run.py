"""GRPO in this process with an engine of vLLM beside the trainer: it learns what it learns with our own loop."""

from pathlib import Path
from statistics import mean

import pytest
from support import metrics_lines

pytest.importorskip("vllm")

from dagrl import Pipeline, ResourcePool, WorkerGroup, adamw, policy, vllm
from dagrl.nodes import generate, grpo_advantage, old_logprob, ppo_clip, prompts, update_policy, verify
from dagrl.trainer.loop import run

ROLLOUTS = {"hf": "hf", "vllm": vllm(kv_cache_gib=0.1)}


def grpo(rollout: str, batch_size: int, precision) -> Pipeline:
    optimizer = adamw(lr=5e-4, warmup=5)
    spec = policy("zoo:tiny", optimizer=optimizer, precision=precision, rollout=ROLLOUTS[rollout])
    actor = WorkerGroup("actor", spec, pool=ResourcePool("main", [1]))
    with Pipeline("grpo") as step:
        batch = prompts(data="zoo:larger", batch_size=batch_size, n=4)
        rows = generate(actor, batch, max_new_tokens=8)
        reward = verify(batch, rows)
        old = old_logprob(actor, rows)
        update_policy(actor, rows, old, grpo_advantage(rows, reward), loss=ppo_clip(eps=0.2))
    return step


@pytest.mark.parametrize(("precision", "bound"), [("bf16", 0.05), ("fp32", 1e-3)])
def test_every_step_generates_from_the_weights_of_the_step_before(tmp_path: Path, precision, bound) -> None:
    run([grpo("vllm", 8, precision)], out=str(tmp_path / "run"), seed=0, steps=4)
    lines = metrics_lines(tmp_path / "run")
    gaps = [line["rollout/logprob_gap"] for line in lines]
    assert len(gaps) == 4
    assert max(gaps) < bound


def test_the_same_seed_is_the_same_run(tmp_path: Path) -> None:
    for name in ("one", "two"):
        run([grpo("vllm", 8, "fp32")], out=str(tmp_path / name), seed=3, steps=3)
    assert metrics_lines(tmp_path / "one") == metrics_lines(tmp_path / "two")


@pytest.mark.long
def test_it_learns_as_with_hf(tmp_path: Path) -> None:
    late: dict[str, list[float]] = {}
    for rollout in ROLLOUTS:
        for seed in range(3):
            out = tmp_path / f"{rollout}-{seed}"
            run([grpo(rollout, 128, "bf16")], out=str(out), seed=seed, steps=20)
            rewards = [line["reward/mean"] for line in metrics_lines(out)]
            late.setdefault(rollout, []).append(mean(rewards[15:20]))
    assert abs(mean(late["vllm"]) - mean(late["hf"])) < 0.07, late
    print(late)
