"""Loading a pipeline file: what it builds, and where an error in it is said to be."""

import sys
import sysconfig
from pathlib import Path

import pytest
from support import GRPO, edited_pipeline

from dagrl import Pipeline
from dagrl.cli.pipeline_file import load_pipelines
from dagrl.errors import PipelineFileError

SIMPLE = """
from dataclasses import dataclass

from dagrl import Pipeline


@dataclass
class Config:
    label: str | None = "p"


def build(cfg: Config):
    {body}
"""


def written(folder: Path, body: str, name: str = "simple.py") -> Path:
    file = folder / name
    file.write_text(SIMPLE.format(body=body))
    return file


def problem_of(file: Path, number: int = 0):
    with pytest.raises(PipelineFileError) as error:
        load_pipelines(str(file))
    assert f"`{file.name}`" in str(error.value)
    return error.value.problems[number]


def test_one_pipeline_or_a_tuple(tmp_path: Path) -> None:
    one = load_pipelines(str(written(tmp_path, "return Pipeline(cfg.label)")), {"label": "q"})
    assert [pipeline.name for pipeline in one.pipelines] == ["q"]
    assert one.config.label == "q"
    assert one.file == tmp_path / "simple.py"
    two = load_pipelines(str(written(tmp_path, 'return Pipeline("a"), Pipeline("bb")')))
    assert [pipeline.name for pipeline in two.pipelines] == ["a", "bb"]
    assert all(isinstance(pipeline, Pipeline) for pipeline in two.pipelines)


def test_a_relative_path_and_a_module_beside_the_file(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(sys, "path", list(sys.path))
    (tmp_path / "beside_the_file.py").write_text("NAME = 'from_beside'\n")
    written(tmp_path, "from beside_the_file import NAME; return Pipeline(NAME)")
    assert load_pipelines("simple.py").pipelines[0].name == "from_beside"
    assert sys.path.index(str(tmp_path)) > sys.path.index(sysconfig.get_path("purelib"))  # what is installed goes first


def test_switching_an_optional_field_off(tmp_path: Path) -> None:
    file = written(tmp_path, "return Pipeline(str(cfg.label))")
    for text in ("none", "false", "None"):
        assert load_pipelines(str(file), {"label": text}).pipelines[0].name == "None"


def test_command_line_values_reach_the_shipped_pipeline() -> None:
    loaded = load_pipelines(str(GRPO), {"lr": "1e-6", "kl": "0", "n": "2"})
    assert (loaded.config.lr, loaded.config.kl, loaded.config.n) == (1e-6, 0.0, 2)
    update = loaded.pipelines[0].call("update_policy")
    assert update.group is not None
    assert update.group.model.optimizer is not None
    assert update.group.model.optimizer.lr == 1e-6


def test_an_error_is_at_the_users_innermost_line_with_the_way_there(tmp_path: Path) -> None:
    (tmp_path / "deeper_still.py").write_text("def fail():\n    import json\n    return json.loads('{')\n")
    problem = problem_of(written(tmp_path, "from deeper_still import fail; fail()"))
    assert problem.what.startswith("JSONDecodeError: ")
    assert str(problem.at).endswith("deeper_still.py:3")
    assert [label for label, _ in problem.facts] == ["from"]
    assert problem.facts[0][1].endswith("simple.py:13")


def test_an_error_in_our_code_is_at_the_line_that_called_it(tmp_path: Path) -> None:
    problem = problem_of(written(tmp_path, "from dagrl.nodes import kl_loss; 'x' * kl_loss()"))
    assert problem.what == "TypeError: a loss is multiplied by a number, not by 'x'."
    assert str(problem.at).endswith("simple.py:13")


def test_an_error_without_words(tmp_path: Path) -> None:
    assert problem_of(written(tmp_path, "raise ValueError")).what == "ValueError: no message."


def test_what_recording_found_comes_before_the_exception(tmp_path: Path) -> None:
    file = edited_pipeline(
        tmp_path,
        ("verify(batch, rollout)", "verify(batch, 3)"),
        ("    return step, held_out(cfg, actor)", "    return 1 / 0"),
    )
    with pytest.raises(PipelineFileError) as error:
        load_pipelines(str(file))
    first, *_, last = error.value.problems
    assert "was passed an int" in first.what
    assert last.what == "ZeroDivisionError: division by zero."


def test_a_syntax_error_in_an_imported_file_is_at_that_file(tmp_path: Path) -> None:
    (tmp_path / "broken_syntax.py").write_text("x = 1\ny = (\n")
    problem = problem_of(written(tmp_path, "import broken_syntax"))
    assert problem.what.startswith("SyntaxError: ")
    assert str(problem.at).endswith("broken_syntax.py:2")


@pytest.mark.parametrize(
    ("body", "shown"), [("return ()", "an empty tuple"), ("return 3", "int"), ("pass", "NoneType")]
)
def test_what_build_may_not_return(body: str, shown: str, tmp_path: Path) -> None:
    problem = problem_of(written(tmp_path, body))
    assert problem.what == f"`build` returned {shown}, not a Pipeline or a tuple of them."
    assert str(problem.at).endswith("simple.py:12")


def test_config_and_build_missing_are_told_together(tmp_path: Path) -> None:
    file = tmp_path / "nothing.py"
    file.write_text("Config = 3\n")
    with pytest.raises(PipelineFileError) as error:
        load_pipelines(str(file))
    assert [problem.what for problem in error.value.problems] == [
        "`Config` is not a dataclass.",
        "the file defines no function `build`.",
    ]
