"""Runs that must be equal: same seed, micro-batches, alias and no alias, with and without the reference."""

import json
from pathlib import Path
from typing import Any

import pytest
from safetensors.torch import load_file
from support import edited_pipeline, event_lines, load_grpo, metrics_lines, run_grpo

from dagrl.compiler import compile_pipelines

#: In fp32 the rollout is the trainer up to rounding, so its gap is nothing but rounding.
FLOAT_NOISE = ("rollout/logprob_gap", "rollout/logprob_gap_max")


def weights(folder: Path) -> dict[str, Any]:
    return load_file(folder / "model" / "model.safetensors")


def assert_close_runs(left: Path, right: Path, *, ignore: tuple[str, ...] = ()) -> None:
    """Equal metrics and final fp32 weights to 1e-6 (relative for large values)."""
    lines = list(zip(metrics_lines(left), metrics_lines(right), strict=True))
    assert lines
    for mine, other in lines:
        mine, other = ({k: v for k, v in line.items() if k not in ignore} for line in (mine, other))
        assert mine.keys() == other.keys()
        for name, value in mine.items():
            same = other[name] if isinstance(value, str | None) else pytest.approx(other[name], rel=1e-6, abs=1e-6)
            assert value == same, name
    other_weights = weights(right)
    for name, tensor in weights(left).items():
        assert (tensor - other_weights[name]).abs().max() <= 1e-6, name


def test_equal_seeds_give_identical_metrics_and_weights(tmp_path: Path) -> None:
    for name in ("a", "b"):
        run_grpo(tmp_path / name, steps=4, seed=3, evaluate=True)
    assert metrics_lines(tmp_path / "a") == metrics_lines(tmp_path / "b")
    assert (tmp_path / "a/model/model.safetensors").read_bytes() == (
        tmp_path / "b/model/model.safetensors"
    ).read_bytes()


def test_another_seed_gives_another_run(tmp_path: Path) -> None:
    run_grpo(tmp_path / "a", steps=2, seed=0)
    run_grpo(tmp_path / "b", steps=2, seed=1)
    assert metrics_lines(tmp_path / "a") != metrics_lines(tmp_path / "b")


@pytest.mark.parametrize("micro_batch_size", [16, 8])
def test_micro_batches_change_no_number(tmp_path: Path, micro_batch_size: int) -> None:
    run_grpo(tmp_path / "whole", steps=1, precision="fp32")
    run_grpo(tmp_path / "parts", steps=1, precision="fp32", micro_batch_size=micro_batch_size)
    assert_close_runs(tmp_path / "whole", tmp_path / "parts", ignore=FLOAT_NOISE)


def test_alias_is_exact(tmp_path: Path) -> None:
    """A second reader of `old_logprob` keeps it in the plan; the numbers stay."""
    kept = edited_pipeline(
        tmp_path,
        ("from dagrl.nodes import (", "from keep_old import watch_old\nfrom dagrl.nodes import ("),
        ("        update_policy(", "        watch_old(old)\n        update_policy("),
    )
    (tmp_path / "keep_old.py").write_text(
        "from jaxtyping import Float32\nfrom torch import Tensor\nfrom dagrl import Metrics, node\n\n"
        '@node()\ndef watch_old(old_logprobs: Float32[Tensor, "B T"]) -> Metrics:\n'
        '    """A second reader."""\n    return Metrics()\n'
    )
    (aliased,) = compile_pipelines(load_grpo().pipelines[:1])
    (unaliased,) = compile_pipelines(load_grpo(kept).pipelines[:1])
    assert list(aliased.aliased) == ["old_logprob"]
    assert list(unaliased.kept) == ["old_logprob"]
    run_grpo(tmp_path / "aliased", precision="fp32")
    run_grpo(tmp_path / "kept", precision="fp32", file=kept)
    assert_close_runs(tmp_path / "aliased", tmp_path / "kept")


def test_without_kl_the_reference_is_not_loaded_and_rows_stay(tmp_path: Path) -> None:
    """The first step sees the same rows and samples; the policy gradient differs only by the KL term, 0 at step 1."""
    run_grpo(tmp_path / "kl", steps=1, kl=0.05, precision="fp32")
    run_grpo(tmp_path / "no_kl", steps=1, kl=0, precision="fp32")
    assert_close_runs(tmp_path / "kl", tmp_path / "no_kl", ignore=("actor/ref_kl",))
    events = event_lines(tmp_path / "no_kl")
    assert all(event.get("op") != "ref_logprob" for event in events)
    plan = json.loads((tmp_path / "no_kl/plan.json").read_text())[0]
    assert [group["name"] for group in plan["groups"]] == ["actor"]


def test_on_policy_first_step_is_exact(tmp_path: Path) -> None:
    """Ratio 1, nothing clipped, KL to the reference exactly 0, and a gradient."""
    run_grpo(tmp_path / "run", steps=1)
    (line,) = metrics_lines(tmp_path / "run")
    assert line["actor/clip_fraction"] == 0
    assert line["actor/old_kl"] == 0
    assert line["actor/ref_kl"] == 0
    assert line["actor/grad_norm"] > 0
