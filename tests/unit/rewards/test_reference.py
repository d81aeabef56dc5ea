import sys
from collections.abc import Callable
from pathlib import Path

import pytest

from dagrl.rewards.errors import RewardReferenceError
from dagrl.rewards.reference import find_function
from dagrl.rewards.shapes import Parameters

Write = Callable[..., str]
CODE = """
raise RuntimeError("this file must not run")
from os.path import join as joined
def score(*, response_text, answers=None): ...
async def compute_score(data_source, solution_str, ground_truth, extra_info=None, **kw): ...
table = {}
first, second = score, score
if True:
    def guarded(a, /, b): ...
@decorate
def decorated(x): ...
class Judge: ...
"""


def test_a_file_is_read_and_not_run(write: Write) -> None:
    path = write(CODE)
    found = find_function(f"{path}:score")
    assert (found.source.file, found.source.module, found.source.name) == (path, None, "score")
    assert found.parameters == Parameters(("response_text", "answers"), frozenset({"response_text"}))
    other = find_function(f"{path}:compute_score").parameters
    assert other == Parameters(
        ("data_source", "solution_str", "ground_truth", "extra_info"),
        frozenset({"data_source", "solution_str", "ground_truth"}),
        takes_any=True,
    )
    assert find_function(f"{path}:guarded").parameters == Parameters(
        ("b",), frozenset({"a", "b"}), positional_only=True
    )


@pytest.mark.parametrize("name", ["joined", "table", "first", "second", "decorated"])
def test_a_name_that_only_running_can_tell_is_taken(name: str, write: Write) -> None:
    assert find_function(f"{write(CODE)}:{name}").parameters is None


def test_a_star_import_may_bring_any_name(write: Write) -> None:
    assert find_function(f"{write('from os.path import *')}:join").parameters is None


@pytest.mark.parametrize(
    ("name", "message"),
    [
        ("scor", "has no `scor`; did you mean `score`?"),
        ("nothing_like_it", "has no `nothing_like_it`; define it there"),
        ("Judge", "is a class"),
    ],
)
def test_a_wrong_name_is_told_with_the_nearest(name: str, message: str, write: Write) -> None:
    with pytest.raises(RewardReferenceError, match=message.replace("?", r"\?")):
        find_function(f"{write(CODE)}:{name}")


@pytest.mark.parametrize("reference", ["score", "file.py", "file.py:", ":score", "a.py:b.c", ""])
def test_what_is_no_reference_is_told_the_form(reference: str) -> None:
    with pytest.raises(RewardReferenceError, match=r"write `module:name` or `path/to/file.py:name`"):
        find_function(reference)


def test_a_missing_file_names_the_nearest_beside_it(write: Write, tmp_path: Path) -> None:
    write(CODE, "rewards.py")
    with pytest.raises(RewardReferenceError, match=r"there is no file .*; did you mean `rewards.py`\?"):
        find_function(f"{tmp_path}/rewads.py:score")


def test_a_file_that_does_not_parse_names_its_line(write: Write) -> None:
    path = write("x = 1\ndef f(:")
    with pytest.raises(RewardReferenceError, match="line 2: "):
        find_function(f"{path}:f")


def test_a_relative_path_is_beside_the_pipeline_or_in_the_working_directory(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    for folder in ("pipeline", "cwd"):
        (tmp_path / folder).mkdir()
        (tmp_path / folder / "both.py").write_text("def f(completions): ...")
    (tmp_path / "cwd" / "here.py").write_text("def f(completions): ...")
    monkeypatch.chdir(tmp_path / "cwd")
    monkeypatch.setattr(sys, "path", [path for path in sys.path if path] + [str(tmp_path / "pipeline")])
    assert find_function("both.py:f").source.file == str(tmp_path / "pipeline" / "both.py")
    assert find_function("here.py:f").source.file == str(tmp_path / "cwd" / "here.py")


def test_a_module_is_found_without_importing_its_package(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "judges").mkdir()
    (tmp_path / "judges" / "__init__.py").write_text("raise RuntimeError('must not run')")
    (tmp_path / "judges" / "exact.py").write_text("def f(completions): ...")
    monkeypatch.syspath_prepend(tmp_path)
    found = find_function("judges.exact:f")
    assert found.source.module == "judges.exact"
    assert found.source.file == str(tmp_path / "judges" / "exact.py")
    assert "judges" not in sys.modules
    with pytest.raises(RewardReferenceError, match=r"there is no module `judges.exakt`"):
        find_function("judges.exakt:f")
    with pytest.raises(RewardReferenceError, match=r"there is no module `nowhere_at_all`"):
        find_function("nowhere_at_all:f")
