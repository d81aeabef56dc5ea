"""GRPO in this process with an engine of vLLM beside the trainer: it learns what it learns with our own loop."""

import json
from collections.abc import Iterable, Iterator
from pathlib import Path
from statistics import mean

import pytest
from support import metrics_lines
from torch import Tensor

pytest.importorskip("vllm")

from dagrl import Pipeline, ResourcePool, WorkerGroup, adamw, policy, vllm
from dagrl.engines.rollout.vllm_loading import Reload
from dagrl.errors import TrainingError
from dagrl.executor.local import LOCAL_RUNTIME
from dagrl.executor.ray import RayRuntime
from dagrl.nodes import generate, grpo_advantage, old_logprob, ppo_clip, prompts, short_prompts, update_policy, verify
from dagrl.trainer.loop import run

ROLLOUTS = {"hf": "hf", "vllm": vllm(kv_cache_gib=0.1)}


def grpo(rollout: str, batch_size: int, precision, *, apart: bool = False, lr: float = 5e-4) -> Pipeline:
    """``apart`` has a group of its own generate, on another pool, from the weights of the one that trains."""
    optimizer = adamw(lr=lr, warmup=5)
    main, far = ResourcePool("main", [1]), ResourcePool("far", [1])
    trained = policy("zoo:tiny", optimizer=optimizer, precision=precision, rollout="hf" if apart else ROLLOUTS[rollout])
    actor = sampler = WorkerGroup("actor", trained, pool=main)
    if apart:
        drawn = policy("zoo:tiny", precision=precision, rollout=ROLLOUTS[rollout])
        sampler = WorkerGroup("rollout", drawn, pool=far, follows=actor)
    with Pipeline("grpo") as step:
        batch = prompts(data="zoo:larger", batch_size=batch_size, n=4)
        rows = generate(sampler, batch, max_new_tokens=8)
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


def test_a_tensor_that_the_engine_lets_pass_is_caught_within_a_step(tmp_path: Path, monkeypatch) -> None:
    """Every name and shape arrives, as by a loader that does not know one of them."""
    name, first = "model.layers.0.mlp.down_proj.weight", list[Tensor]()
    whole = Reload.load

    def load(self: Reload, weights: Iterable[tuple[str, Tensor]]) -> None:
        def stale() -> Iterator[tuple[str, Tensor]]:
            for key, tensor in weights:
                if key == name:
                    first.append(tensor.detach().clone())
                yield key, first[0] if key == name else tensor

        whole(self, stale())

    monkeypatch.setattr(Reload, "load", load)
    with pytest.raises(TrainingError, match=r"does not draw from the weights .* in step 2"):
        run([grpo("vllm", 8, "fp32", lr=5e-3)], out=str(tmp_path / "run"), seed=0, steps=4)


def test_the_same_seed_is_the_same_run(tmp_path: Path) -> None:
    for name in ("one", "two"):
        run([grpo("vllm", 8, "fp32")], out=str(tmp_path / name), seed=3, steps=3)
    assert metrics_lines(tmp_path / "one") == metrics_lines(tmp_path / "two")


def test_a_follower_generates_what_the_trainer_would(tmp_path: Path) -> None:
    for apart in (False, True):
        run([grpo("vllm", 8, "fp32", apart=apart)], out=str(tmp_path / str(apart)), seed=3, steps=3)
    together, others = (metrics_lines(tmp_path / str(apart)) for apart in (False, True))
    assert all(line["rollout/logprob_gap"] < 1e-3 for line in others)
    for name in ("reward/mean", "response_length/mean"):
        assert [line[name] for line in together] == [line[name] for line in others]


def test_long_prompts_leave_as_whole_groups_and_are_counted(tmp_path: Path) -> None:
    """Of ten prompts three are too long for the limit: of one token more, and far beyond the model's context."""
    texts = ["1 2", "12 34", "12 345", "1 3", "2 4", "9" * 300, "3 5", "4 6", "12 346", "5 7"]
    data = tmp_path / "train.jsonl"
    data.write_text("".join(json.dumps({"prompt": text, "answer": "3"}) + "\n" for text in texts))
    spec = policy("zoo:tiny", optimizer=adamw(lr=5e-4), precision="fp32", rollout=ROLLOUTS["vllm"])
    actor = WorkerGroup("actor", spec, pool=ResourcePool("main", [1]))
    with Pipeline("grpo") as step:
        batch = prompts(data=str(data), batch_size=10, n=4)
        kept = short_prompts(actor, batch, max_prompt_tokens=7)
        rows = generate(actor, batch, kept, max_new_tokens=8)
        reward = verify(batch, rows)
        old = old_logprob(actor, rows)
        update_policy(actor, rows, old, grpo_advantage(rows, reward), loss=ppo_clip(eps=0.2))
    (record,) = run([step], out=str(tmp_path / "run"), seed=0, steps=1).records
    assert record.metrics["short_prompts/dropped"] == 3 * 4
    assert record.metrics["actor/grad_norm"] >= 0


@pytest.mark.long
@pytest.mark.timeout(1800)
def test_it_learns_as_with_hf_together_and_apart(tmp_path: Path, one_thread_each: None) -> None:
    """Apart on Ray: weights then go from process to process."""
    late: dict[str, list[float]] = {}
    for name, (rollout, apart) in {"hf": ("hf", False), "vllm": ("vllm", False), "apart": ("vllm", True)}.items():
        for seed in range(3):
            out = tmp_path / f"{name}-{seed}"
            runtime = RayRuntime(deadline=240.0) if apart else LOCAL_RUNTIME
            run([grpo(rollout, 128, "bf16", apart=apart)], out=str(out), seed=seed, steps=20, runtime=runtime)
            rewards = [line["reward/mean"] for line in metrics_lines(out)]
            late.setdefault(name, []).append(mean(rewards[15:20]))
    for name in ("vllm", "apart"):
        assert abs(mean(late[name]) - mean(late["hf"])) < 0.07, late
