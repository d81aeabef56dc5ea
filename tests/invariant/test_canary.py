"""Rollout weights that are not the trained ones end the run within a step, and say by how much; noise does not."""

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest
import torch
from support import edited_pipeline, load_grpo, metrics_lines, run_grpo

from dagrl.compiler import compile_pipelines
from dagrl.errors import CompileError, TrainingError
from dagrl.executor.events import Event, OpFailed
from dagrl.executor.local import LocalExecutor, LocalRuntime
from dagrl.trainer.loop import run
from dagrl.workers.deployment import Planned
from dagrl.workers.policy import PolicyWorker

TOLERANCE = "micro_batch_size=cfg.micro_batch_size,"
CORRECTED = (
    "        old = old_logprob(actor, rollout)\n"
    "        corrected = rollout_correction(rollout, old_logprob(actor, rollout))"
)


class SkipsATensor(LocalRuntime):
    """Its actor's rollout keeps one tensor as it was, from the sync of a step on."""

    def __init__(self, name: str) -> None:
        self.name = name

    def start(self, planned: Sequence[Planned], *, seed: int, total_steps: int) -> LocalExecutor:
        executor = super().start(planned, seed=seed, total_steps=total_steps)
        actor = executor.host.models["actor"]
        assert isinstance(actor, PolicyWorker)
        assert actor._rollout_model is not None
        skipped = dict(actor._rollout_model.named_parameters())[self.name]
        whole = actor.sync_rollout

        def sync() -> None:
            before = skipped.detach().clone()
            whole()
            with torch.no_grad():
                skipped.copy_(before)

        actor.sync_rollout = sync
        return executor


def train(out: Path, runtime: LocalRuntime, file: Path | None = None, **values: Any) -> list[Event]:
    events: list[Event] = []
    pipelines = (load_grpo(**values) if file is None else load_grpo(file, **values)).pipelines[:1]
    run(pipelines, out=str(out), steps=4, runtime=runtime, on_event=events.append)
    return events


def test_a_tensor_that_a_sync_skips_is_caught_within_a_step(tmp_path: Path) -> None:
    """The first update moves every weight; the second is given rows from weights that are part old, and refuses."""
    with pytest.raises(TrainingError) as error:
        train(tmp_path / "run", SkipsATensor("model.layers.0.mlp.down_proj.weight"), lr=0.5)
    text = str(error.value)
    assert "the rollout of `actor` does not draw from the weights that `actor` trains: in step 2" in text
    assert "more than the 0.1 that are tolerated" in text
    assert "by the rollout" in text
    assert "by the trainer" in text
    assert "`logprob_gap_tolerance`" in text
    assert [line["step"] for line in metrics_lines(tmp_path / "run")] == [1]


def test_a_finer_tolerance_catches_a_small_step(tmp_path: Path) -> None:
    """At a usual learning rate a stale tensor is a small gap, which bf16 noise would hide."""
    fine = edited_pipeline(tmp_path, (TOLERANCE, f"{TOLERANCE} logprob_gap_tolerance=0.02,"))
    with pytest.raises(TrainingError, match=r"step 2 .*more than the 0\.02 that are tolerated"):
        train(tmp_path / "run", SkipsATensor("model.embed_tokens.weight"), fine, lr=5e-2)


def test_without_a_tolerance_the_run_goes_on(tmp_path: Path) -> None:
    off = edited_pipeline(tmp_path, (TOLERANCE, f"{TOLERANCE} logprob_gap_tolerance=None,"))
    events = train(tmp_path / "run", SkipsATensor("model.layers.0.mlp.down_proj.weight"), off, lr=0.5)
    assert not any(isinstance(event, OpFailed) for event in events)
    assert len(metrics_lines(tmp_path / "run")) == 4


@pytest.mark.parametrize(("precision", "noise"), [("fp32", 1e-4), ("bf16", 0.03)])
def test_a_sound_run_stays_far_below_the_tolerance(precision: str, noise: float, tmp_path: Path) -> None:
    run_grpo(tmp_path / "run", steps=5, precision=precision, lr=1e-2)
    lines = metrics_lines(tmp_path / "run")
    assert all(line["rollout/logprob_gap"] < noise for line in lines)
    assert all(line["rollout/logprob_gap"] <= line["rollout/logprob_gap_max"] for line in lines)


@pytest.mark.parametrize("tolerance", ["-0.1", "-1"])
def test_a_negative_tolerance_is_refused(tolerance: str, tmp_path: Path) -> None:
    file = edited_pipeline(tmp_path, (TOLERANCE, f"{TOLERANCE} logprob_gap_tolerance={tolerance},"))
    with pytest.raises(CompileError, match=f"`logprob_gap_tolerance` is {tolerance}"):
        compile_pipelines(load_grpo(file).pipelines)


def canary_of(file: Path | None = None, **values: Any) -> Any:
    pipelines = (load_grpo(**values) if file is None else load_grpo(file, **values)).pipelines
    (op,) = [op for op in compile_pipelines(pipelines)[0].runs if op.mutates]
    return op.canary


def test_the_tolerance_goes_by_the_precision(tmp_path: Path) -> None:
    assert (canary_of().rollout, canary_of().tolerance) == ("actor", 0.1)
    assert canary_of(precision="fp32").tolerance == 0.01
    own = edited_pipeline(tmp_path, (TOLERANCE, f"{TOLERANCE} logprob_gap_tolerance=0.5,"))
    assert canary_of(own).tolerance == 0.5


@pytest.mark.parametrize(
    "edits",
    [
        [("optimizer=optimizer, ", "optimizer=optimizer, dropout=True, ")],
        [
            ("temperature=cfg.temperature)", "temperature=cfg.temperature, top_p=0.9)"),
            ("        old = old_logprob(actor, rollout)", CORRECTED),
            ("actor, rollout, old, reference", "actor, rollout, corrected, old, reference"),
            ("    generate,", "    generate,\n    rollout_correction,"),
        ],
    ],
    ids=["dropout", "top_p"],
)  # fmt: skip
def test_where_the_distributions_differ_by_themselves_there_is_no_canary(
    edits: list[tuple[str, str]], tmp_path: Path
) -> None:
    assert canary_of(edited_pipeline(tmp_path, *edits)) is None
