"""`dagrl run --profile`: a trace of each chosen step from every process, in which nodes and methods have names."""

import gzip
import json
from pathlib import Path

import pytest
from click.testing import CliRunner
from support import GRPO

from dagrl.cli.main import cli


def profiled(out: Path, *arguments: str) -> str:
    given = ["run", str(GRPO), "--out", str(out), "--ui", "lines", "--set", "batch_size=8", "--set", "eval_every=1000"]
    done = CliRunner().invoke(cli, [*given, *arguments], catch_exceptions=False)
    assert done.exit_code == 0, done.output
    return done.output


def names_in(file: Path) -> set[str]:
    events = json.loads(gzip.decompress(file.read_bytes()))["traceEvents"]
    return {event["name"] for event in events if event.get("cat") == "user_annotation"}


NODES = {"generate", "verify", "grpo_advantage", "ref_logprob", "update_policy", "prompts"}
METHODS = {"PolicyWorker.generate", "PolicyWorker.compute_logprobs", "RoleWorker.update", "PolicyWorker.sync_rollout"}


def test_chosen_steps_are_traced_and_no_others(tmp_path: Path) -> None:
    profiled(tmp_path / "run", "--steps", "4", "--profile", "2,4")
    folders = sorted(folder.name for folder in (tmp_path / "run/profile").iterdir())
    assert folders == ["step_000002", "step_000004"]
    for folder in folders:
        (file,) = (tmp_path / "run/profile" / folder).iterdir()
        assert file.name == "main-00000.json.gz"
        assert names_in(file) >= NODES | METHODS


def test_a_run_without_the_option_has_no_folder_for_traces(tmp_path: Path) -> None:
    profiled(tmp_path / "run", "--steps", "1")
    assert not (tmp_path / "run/profile").exists()


@pytest.mark.parametrize(
    ("steps", "said"),
    [
        ("3-5", "2 steps to be profiled will not be run: 4, 5"),
        ("0", "'0' is no range of steps"),
        ("4-2", "'4-2' is no range of steps"),
        ("2,,3", "'' is no step: give numbers such as 2,3 or 5-8"),
        ("two", "'two' is no step"),
    ],
)
def test_steps_that_are_not_run_are_refused(tmp_path: Path, steps: str, said: str) -> None:
    given = ["run", str(GRPO), "--out", str(tmp_path / "run"), "--steps", "3", "--profile", steps]
    done = CliRunner().invoke(cli, given)
    assert done.exit_code != 0
    assert said in f"{done.output} {done.exception}"
    assert not (tmp_path / "run").exists()


def test_a_resumed_run_refuses_steps_that_are_done(tmp_path: Path) -> None:
    profiled(tmp_path / "run", "--steps", "2", "--save-every", "1", "--profile", "1")
    profiled(tmp_path / "run", "--steps", "3", "--resume", "auto", "--profile", "3")
    assert sorted(each.name for each in (tmp_path / "run/profile").iterdir()) == ["step_000001", "step_000003"]
    given = ["run", str(GRPO), "--out", str(tmp_path / "run"), "--steps", "5", "--set", "batch_size=8"]
    given += ["--set", "eval_every=1000", "--resume", "auto", "--profile", "2,4"]
    done = CliRunner().invoke(cli, given)
    assert "1 step to be profiled will not be run: 2" in str(done.exception)
    assert "4 to 5, since 3 are done" in str(done.exception)


@pytest.mark.long
def test_every_process_on_ray_writes_its_own(tmp_path: Path) -> None:
    profiled(tmp_path / "run", "--steps", "2", "--profile", "2", "--executor", "ray", "--set", "workers=2")
    files = sorted((tmp_path / "run/profile/step_000002").iterdir())
    assert [file.name for file in files] == ["main-00000.json.gz", "main-00001.json.gz"]
    for file in files:
        assert names_in(file) >= NODES | METHODS
