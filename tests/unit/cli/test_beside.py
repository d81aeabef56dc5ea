"""What lies beside a pipeline file is imported from there, whatever else is installed or was run before."""

import shutil
import subprocess
import sys
from pathlib import Path

import pytest
from support import ROOT

from dagrl.cli.pipeline_file import load_pipelines

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
