"""Rollout correction inside a short run: weights reach the loss, rejected rows leave, drift is reported."""

from pathlib import Path
from typing import Any

import pytest
from support import edited_pipeline, metrics_lines, run_grpo

UPDATE = "            actor, rollout, old, reference, advantages,\n"
QUICK: dict[str, Any] = {"batch_size": 4, "n": 4, "precision": "fp32", "steps": 2, "seed": 3}


def corrected(folder: Path, out: Path, calls: str, *edges: str) -> list[dict[str, Any]]:
    """The metrics of a run of GRPO with further calls above the update and their edges passed to it."""
    folder.mkdir()
    file = edited_pipeline(
        folder,
        ("    kl_loss,\n", "    kl_loss,\n    low_drift,\n    rollout_correction,\n"),
        ("        update_policy(\n", f"{calls}        update_policy(\n"),
        (UPDATE, UPDATE.replace("advantages,", ", ".join(["advantages", *edges]) + ",")),
    )
    run_grpo(out, file=file, **QUICK)
    return metrics_lines(out)


def test_where_engines_agree_the_correction_changes_nothing_but_is_reported(tmp_path: Path) -> None:
    run_grpo(tmp_path / "plain", **QUICK)
    call = "        weights = rollout_correction(rollout, old)\n"
    lines = corrected(tmp_path / "file", tmp_path / "run", call, "weights")
    for plain, line in zip(metrics_lines(tmp_path / "plain"), lines, strict=True):
        assert line["actor/loss"] == pytest.approx(plain["actor/loss"], abs=1e-5)
        assert line["rollout/ess"] == pytest.approx(1.0, abs=1e-4)
        assert line["rollout/kl"] == pytest.approx(0.0, abs=1e-4)
        assert line["rollout/trainer_ppl"] == pytest.approx(line["rollout/rollout_ppl"], rel=1e-4) != 1.0
        assert line["rollout/rejected"] == line["rollout/outside_bounds"] == 0


def test_weights_of_zero_leave_nothing_to_learn_from(tmp_path: Path) -> None:
    call = '        weights = rollout_correction(rollout, old, reject_by="k1", reject_above=-1.0)\n'
    lines = corrected(tmp_path / "file", tmp_path / "run", call, "weights")
    assert lines[0]["rollout/rejected"] == 1.0
    assert lines[0]["rollout/weight"] == lines[0]["rollout/ess"] == lines[0]["actor/pg_loss"] == 0.0


def test_rows_that_drift_leave_the_update(tmp_path: Path) -> None:
    """A limit below any rounding takes some rows out, and the update sees only the others."""
    call = '        kept = low_drift(rollout, old, above=1e-12, by="abs", over="row-max")\n'
    lines = corrected(tmp_path / "file", tmp_path / "run", call, "kept")
    assert 0 < lines[0]["low_drift/dropped"] <= 16
