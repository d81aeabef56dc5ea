"""What lies beside a pipeline file is imported from there, whatever else is installed or was run before."""

import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest
from support import ROOT

from dagrl.cli.pipeline_file import load_pipelines
from dagrl.errors import PipelineFileError

SIMPLE = """
from dataclasses import dataclass
import {module}
from dagrl import Pipeline

@dataclass(frozen=True, kw_only=True)
class Config:
    n: int = 1

def build(cfg: Config):
    return Pipeline({module}.{value})
"""


@pytest.fixture(autouse=True)
def _path_as_it_was(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sys, "path", list(sys.path))


def written(folder: Path, module: str, value: str, **siblings: str) -> str:
    folder.mkdir()
    for name, text in siblings.items():
        (folder / f"{name}.py").write_text(text)
    file = folder / "mine.py"
    file.write_text(SIMPLE.format(module=module, value=value))
    return str(file)


def name_of(file: str) -> str:
    return load_pipelines(file).pipelines[0].name


def test_each_file_gets_its_own_sibling(tmp_path: Path) -> None:
    first = written(tmp_path / "first", "common_part", "NAME", common_part="NAME = 'first'")
    second = written(tmp_path / "second", "common_part", "NAME", common_part="NAME = 'second'")
    assert [name_of(file) for file in (first, second, first)] == ["first", "second", "first"]


def test_a_package_beside_the_file_is_its_own_as_a_whole(tmp_path: Path) -> None:
    files = []
    for name in ("one", "two"):
        files.append(written(tmp_path / name, "common_package", "NAME"))
        package = tmp_path / name / "common_package"
        package.mkdir()
        (package / "__init__.py").write_text("from common_package.inner import NAME\n")
        (package / "inner.py").write_text(f"NAME = {name!r}\n")
    assert [name_of(file) for file in files] == ["one", "two"]


def test_a_sibling_named_like_an_installed_module_shadows_nothing(tmp_path: Path) -> None:
    broken = "raise RuntimeError('not meant to be imported')"
    siblings = {"torch": broken, "json": broken, "colorsys": broken, "networkx": broken}
    assert name_of(written(tmp_path / "here", "colorsys", "__name__", **siblings)) == "colorsys"


def test_modules_of_an_earlier_folder_stay_where_nothing_replaces_them(tmp_path: Path) -> None:
    assert name_of(written(tmp_path / "with", "kept_part", "NAME", kept_part="NAME = 'kept'")) == "kept"
    kept = sys.modules["kept_part"]
    assert name_of(written(tmp_path / "without", "sys", "__name__")) == "sys"
    assert sys.modules["kept_part"] is kept


def test_a_sibling_goes_before_one_of_the_search_path(tmp_path: Path) -> None:
    """Also one that is loaded already; the rest of that folder can still be imported."""
    elsewhere = tmp_path / "elsewhere"
    elsewhere.mkdir()
    (elsewhere / "varied_part.py").write_text("NAME = 'elsewhere'\n")
    (elsewhere / "lone_part.py").write_text("NAME = 'lone'\n")
    sys.path.insert(0, str(elsewhere))
    __import__("varied_part")
    siblings = {"varied_part": "from lone_part import NAME as LONE\nNAME = 'beside ' + LONE"}
    assert name_of(written(tmp_path / "here", "varied_part", "NAME[:6]", **siblings)) == "beside"
    assert sys.modules["varied_part"].NAME == "beside lone"


def test_a_folder_that_is_on_the_path_already_goes_before_others_too(tmp_path: Path) -> None:
    first = written(tmp_path / "first", "common_piece", "NAME", common_piece="NAME = 'first'")
    second = written(tmp_path / "second", "common_piece", "NAME", common_piece="NAME = 'second'")
    sys.path += [str(tmp_path / "first"), str(tmp_path / "second")]
    assert [name_of(file) for file in (first, second, first)] == ["first", "second", "first"]


def test_the_command_takes_the_files_own_sibling_wherever_it_is_called(tmp_path: Path) -> None:
    file = written(tmp_path / "here", "grpo", "NAME", grpo="NAME = 'beside'")
    (tmp_path / "grpo.py").write_text("raise RuntimeError('not meant to be imported')\n")
    code = "import sys; from dagrl.cli.pipeline_file import load_pipelines as load; print(load(sys.argv[1]).pipelines)"
    done = subprocess.run(
        [sys.executable, "-c", code, file],
        cwd=tmp_path,
        env={**os.environ, "PYTHONPATH": os.pathsep.join([str(ROOT), str(tmp_path)])},
        capture_output=True,
        text=True,
    )
    assert done.returncode == 0, done.stderr


def test_a_file_that_imports_a_namesake_of_an_installed_package_is_refused(tmp_path: Path) -> None:
    file = written(tmp_path / "here", "networkx", "NAME", networkx="NAME = 'mine'")
    with pytest.raises(PipelineFileError) as refused:
        load_pipelines(file)
    (problem,) = refused.value.problems
    assert "not from the `networkx.py` beside `mine.py`" in problem.what
    assert str(problem.at).endswith("mine.py:3")
    assert problem.fix == "`networkx` is an installed package and goes first: rename your `networkx.py`"


@pytest.mark.parametrize(
    ("module", "kind"), [("networkx", "an installed package"), ("colorsys", "a module of Python's own")]
)
def test_a_sibling_whose_own_sibling_loses_says_what_goes_first(module: str, kind: str, tmp_path: Path) -> None:
    between = {f"between_{module}": f"from {module} import MINE", module: "MINE = 1"}
    with pytest.raises(PipelineFileError) as refused:
        load_pipelines(written(tmp_path / "here", f"between_{module}", "MINE", **between))
    (problem,) = refused.value.problems
    assert problem.fix == f"`{module}` is {kind} and goes first: rename your `{module}.py`"


def test_a_variant_without_the_pipeline_that_it_varies(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sys, "path", [path for path in sys.path if not (Path(path) / "grpo.py").exists()])
    monkeypatch.delitem(sys.modules, "grpo", raising=False)
    with pytest.raises(PipelineFileError) as refused:
        load_pipelines(shutil.copy(ROOT / "pipelines" / "cispo.py", tmp_path))
    assert refused.value.problems[0].fix == "put `grpo.py` beside `cispo.py` (it imports it), or install it"


NODE = """
from jaxtyping import Float32
from torch import Tensor
from dagrl import node
import deeper_part

NAME = "step"

@node(writes="rewards")
def scaled(rewards: Float32[Tensor, " B"]) -> Float32[Tensor, " B"]:
    return rewards * deeper_part.factor()
"""
SENDS = """
import shutil
import subprocess
import sys
from ray import cloudpickle
from dagrl.cli.pipeline_file import load_pipelines
from dagrl.controller.shipping import ship_user_modules
load_pipelines(sys.argv[1])
ship_user_modules()
open(sys.argv[2], "wb").write(cloudpickle.dumps(sys.modules["node_part"].scaled))
"""
RECEIVES = """
import pickle, sys, torch
scaled = pickle.load(open(sys.argv[1], "rb"))
assert not {"node_part", "deeper_part"} & sys.modules.keys()
print(scaled(torch.ones(2)).tolist())
"""


def test_what_lies_beside_reaches_a_process_that_has_no_such_file(tmp_path: Path) -> None:
    """A node of a sibling goes whole, with the sibling that it imports itself."""
    file = written(
        tmp_path / "here", "node_part", "NAME", node_part=NODE, deeper_part="def factor():\n    return 3.0\n"
    )
    sent = str(tmp_path / "sent")
    subprocess.run([sys.executable, "-c", SENDS, file, sent], check=True, cwd=ROOT)
    shutil.rmtree(tmp_path / "here")
    received = subprocess.run([sys.executable, "-c", RECEIVES, sent], cwd=ROOT, capture_output=True, text=True)
    assert received.stdout.strip() == "[3.0, 3.0]", received.stderr
