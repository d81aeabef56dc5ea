"""Whole steps of the packaged model with losses that prepare over a mini-batch, project logits or read a teacher."""

from math import isfinite
from pathlib import Path

import pytest
from support import metrics_lines

from dagrl import LossTerms, Pipeline, ResourcePool, WorkerGroup, adamw, policy
from dagrl.nodes import (
    clip_cov,
    generate,
    grpo_advantage,
    kl_cov,
    old_logprob,
    prompts,
    reverse_kl_distill,
    teacher_topk,
    topk_distill,
    update_policy,
    verify,
)
from dagrl.trainer.loop import run

CASES: dict[str, tuple[LossTerms, dict[str, int]]] = {
    "clip_cov": (clip_cov(cov_low=-1.0), {}),
    "kl_cov": (kl_cov(), {"mini_batch_size": 8, "micro_batch_size": 3, "epochs": 2}),
    "reverse_kl_distill": (reverse_kl_distill(), {}),
    "topk_distill": (topk_distill(), {"micro_batch_size": 5}),
    "both": (topk_distill(kind="reverse", tail="renormalize") + 0.1 * clip_cov(), {"mini_batch_size": 8}),
}


def build(loss: LossTerms, options: dict[str, int]) -> Pipeline:
    pool = ResourcePool("main")
    actor = WorkerGroup("actor", policy("zoo:tiny", optimizer=adamw(lr=1e-4), precision="fp32"), pool=pool)
    teacher = WorkerGroup("teacher", policy("zoo:tiny", precision="fp32"), pool=pool)
    with Pipeline("p", steps=2) as step:
        batch = prompts(data="zoo:larger", batch_size=4, n=4)
        rollout = generate(actor, batch, max_new_tokens=8)
        reads = {read.name for read in loss.reads()}
        edges = [rollout]
        if "advantages" in reads:
            edges.append(grpo_advantage(rollout, verify(batch, rollout)))
        if "old_logprobs" in reads:
            edges.append(old_logprob(actor, rollout))
        if any(name.startswith("teacher") for name in reads):
            edges.append(teacher_topk(teacher, rollout, k=5))
        update_policy(actor, *edges, loss=loss, **options)
    return step


@pytest.mark.parametrize("name", CASES)
def test_two_steps(name: str, tmp_path: Path) -> None:
    """A student that starts as its teacher is at no distance from it, and a little away after a step."""
    run((build(*CASES[name]),), out=str(tmp_path / "run"), seed=0)
    first, second = metrics_lines(tmp_path / "run")
    assert first.keys() == second.keys()
    assert all(isfinite(value) for line in (first, second) for value in line.values() if isinstance(value, float))
    assert first["actor/grad_norm"] > 0 or "distill" in name
    if name == "clip_cov":
        assert 0 < first["actor/cov_selected"] < 0.1
    if name in ("reverse_kl_distill", "topk_distill"):
        key = "distill/reverse_kl" if name == "reverse_kl_distill" else "distill/topk_forward_kl"
        assert first[key] == pytest.approx(0, abs=1e-5)
