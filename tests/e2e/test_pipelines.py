"""Every shipped pipeline takes steps on the embedded model, and says on one screen what it does."""

import math
from pathlib import Path

import pytest
from support import ROOT

from dagrl.cli.pipeline_file import load_pipelines
from dagrl.trainer.loop import run

PIPELINES = sorted((ROOT / "pipelines").glob("*.py"))
#: Enough prompts for rewards that differ.
SIZES = {"batch_size": "32", "steps": "2", "eval_every": "2"}
MORE = {"dapo": {"groups": "4"}}


@pytest.mark.parametrize("file", PIPELINES, ids=lambda file: file.stem)
def test_it_learns_from_its_rows(file: Path, tmp_path: Path) -> None:
    step, held_out = load_pipelines(str(file), {**SIZES, **MORE.get(file.stem, {})}).pipelines
    assert step.name == file.stem
    result = run((step, held_out), out=str(tmp_path), seed=0)
    steps = [record.metrics for record in result.records if record.pipeline == step.name]
    assert len(steps) == 2
    for numbers in steps:
        assert numbers["actor/optimizer_steps"] >= 1
        assert 0 < numbers["actor/grad_norm"] < math.inf
    assert any(record.pipeline == held_out.name for record in result.records)


@pytest.mark.parametrize("file", PIPELINES, ids=lambda file: file.stem)
def test_it_fits_on_one_screen(file: Path) -> None:
    lines = file.read_text().splitlines()
    assert len(lines) <= 90
    assert "arXiv" in lines[0]
