"""The README says what the code does: its commands run, its code runs, its excerpts are real, its paths exist."""

import inspect
import json
import os
import re
import shlex
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from dagrl.zoo import open_task

ROOT = Path(__file__).resolve().parent.parent
README = (ROOT / "README.md").read_text()
BLOCKS = re.findall(r"^```(\w+)\n(.*?)^```$", README, flags=re.MULTILINE | re.DOTALL)
PYTHON = [text for language, text in BLOCKS if language == "python"]
TEXT = [text for language, text in BLOCKS if language == "text"]
COMMANDS = [line for language, text in BLOCKS if language == "bash" for line in text.splitlines()]
DAGRL = [command for command in COMMANDS if command.startswith("dagrl ")]


def block(blocks: list[str], start: str) -> str:
    (found,) = [text for text in blocks if text.lstrip().startswith(start)]
    return found


def dagrl(command: str, cwd: Path) -> subprocess.CompletedProcess[str]:
    path = f"{Path(sys.executable).parent}{os.pathsep}{os.environ['PATH']}"
    environment = {**os.environ, "PATH": path}
    environment.pop("COLUMNS", None)
    if "workers=" in command:  # the other commands do on Ray what they do here, and starting it takes seconds
        environment["DAGRL_EXECUTOR"] = ""
    return subprocess.run(shlex.split(command), cwd=cwd, env=environment, capture_output=True, text=True, timeout=240)


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """A place like the repository's root, to run commands in."""
    for name in ("pipelines", "plugins"):
        shutil.copytree(ROOT / name, tmp_path / name, ignore=shutil.ignore_patterns("__pycache__"))
    (tmp_path / "mine").mkdir()
    for split in ("train", "test"):
        rows = open_task("larger", split)[:32]
        lines = [json.dumps({"prompt": row.prompt, "answer": row.answer}) for row in rows]
        (tmp_path / "mine" / f"{split}.jsonl").write_text("\n".join(lines))
    return tmp_path


def test_every_link_points_at_a_file() -> None:
    targets = re.findall(r"\]\(([^)#]+)\)", README)
    assert len(targets) > 10
    assert [target for target in targets if "://" not in target and not (ROOT / target).exists()] == []


def test_make_targets_exist() -> None:
    targets = set(re.findall(r"^([\w-]+):", (ROOT / "Makefile").read_text(), flags=re.MULTILINE))
    named = set(re.findall(r"`?make ([\w-]+)`?", README))
    assert {"demo", "test", "check"} <= named
    assert named <= targets
    developing = README.split("## Develop")[1]
    listed = re.findall(r"^\| `make ([\w-]+)` \|", developing, flags=re.MULTILINE)
    assert len(listed) == len(set(listed))
    assert {target for target in targets if target.startswith("bench")} <= set(listed)
    assert "make test" in (ROOT / ".ci" / "run").read_text()


@pytest.mark.parametrize(
    "command",
    [
        pytest.param(command, marks=[pytest.mark.long] if "workers=2" in command else [])
        for command in DAGRL
        if "plugins/mine" not in command
    ],
)
def test_commands_run(command: str, folder: Path) -> None:
    done = dagrl(command, folder)
    assert done.returncode == 0, done.stderr
    if " run " in command:
        (run,) = (folder / "runs").iterdir()
        table = README.split("## What a run leaves")[1].split("##")[0]
        listed = set(re.findall(r"`([\w.]+/?)`", table.replace("time/...", "")))
        assert {f"{path.name}/" if path.is_dir() else path.name for path in run.iterdir()} == listed


def test_the_shown_pipeline_is_the_shipped_one() -> None:
    assert block(PYTHON, "def build") in (ROOT / "pipelines" / "grpo.py").read_text()


def test_the_shown_variant_is_the_shipped_one() -> None:
    text = (ROOT / "pipelines" / "gspo.py").read_text()
    assert text.endswith(block(PYTHON, "import grpo"))


def test_the_shown_plan_is_the_real_one(folder: Path) -> None:
    printed = dagrl("dagrl plan pipelines/grpo.py", folder).stdout
    assert block(TEXT, "6  update_policy") in printed
    assert block(TEXT, "╭") in printed
    kept = dagrl("dagrl plan pipelines/grpo.py --set mini_batch_size=128", folder).stdout
    assert "kept old_logprob: `update_policy` takes 512 rows in mini-batches of 128" in kept


def test_the_shown_error_is_the_real_one(folder: Path) -> None:
    pipeline = folder / "pipelines" / "grpo.py"
    pipeline.write_text(pipeline.read_text().replace("old, reference, advantage", "old, advantage"))
    done = dagrl("dagrl plan pipelines/grpo.py", folder)
    assert done.returncode == 2
    assert block(TEXT, "CompileError") in done.stderr


def test_the_shown_node_runs(folder: Path) -> None:
    code = block(PYTHON, '"""A reward of one')
    assert code == (ROOT / "plugins" / "short_reward.py").read_text()
    (copy,) = [command for command in COMMANDS if command.startswith("cp ")]
    subprocess.run(shlex.split(copy), cwd=folder, check=True)
    pipeline = (folder / "plugins/mine.py").read_text()
    assert pipeline.count("reward = verify(batch, rollout)") == 1
    changed = pipeline.replace("reward = verify(batch, rollout)", block(PYTHON, "reward =").strip())
    assert "from short_reward import short_reward" in README
    changed = changed.replace("import dataclass\n", "import dataclass\nfrom short_reward import short_reward\n")
    (folder / "plugins/mine.py").write_text(changed)
    (command,) = [command for command in DAGRL if "plugins/mine.py" in command]
    done = dagrl(command, folder)
    assert done.returncode == 0, done.stderr
    test = block(PYTHON, "import torch\nfrom short_reward")
    ran = subprocess.run([sys.executable, "-c", test], cwd=folder / "plugins", capture_output=True, text=True)
    assert ran.returncode == 0, ran.stderr


def test_the_trained_model_answers_as_shown(folder: Path) -> None:
    (command,) = [command for command in DAGRL if "--out runs/short" in command]
    assert dagrl(command, folder).returncode == 0
    question = block(PYTHON, "from transformers")
    asked = subprocess.run([sys.executable, "-c", question], cwd=folder, capture_output=True, text=True)
    assert asked.returncode == 0, asked.stderr
    assert asked.stdout.startswith("<bos>347 352=")


def test_shown_progress_has_the_real_shape(folder: Path) -> None:
    shown = block(TEXT, "grpo: 240").splitlines()[:3]
    real = dagrl("dagrl run pipelines/grpo.py --steps 2 --set batch_size=4", folder).stdout.splitlines()

    def shape(line: str) -> str:
        return re.sub(r"\(.*?\)", "(...)", re.sub(r"[\d.-]+", "0", line))

    assert [shape(line) for line in shown] == [shape(line) for line in real[:3]]


def test_the_shown_violation_is_the_real_one(tmp_path: Path) -> None:
    assert dagrl("dagrl new node my_advantage", tmp_path).returncode == 0
    file = tmp_path / "my_advantage.py"
    assert file.read_text().count("- rewards[rows].median()") == 1
    file.write_text(file.read_text().replace("- rewards[rows].median()", "- rewards.median()"))
    done = dagrl("dagrl check my_advantage.py", tmp_path)
    assert done.returncode == 2
    assert block(TEXT, "ContractViolationError") in done.stderr


def test_the_knobs_of_the_table_exist() -> None:
    import dagrl
    import dagrl.nodes

    table = README.split("## From verl or TRL")[1].split("\n## ")[0]
    last = [line.split("|")[-2] for line in table.splitlines() if line.startswith("| `")]
    knobs = re.findall(r"`(\w+)\((?:(\w+)=)?\)`", " ".join(last))
    assert len(knobs) > 25
    for owner, option in knobs:
        found = getattr(dagrl if owner in dagrl.__all__ else dagrl.nodes, owner)
        parameters = inspect.signature(found.__init__ if inspect.isclass(found) else inspect.unwrap(found)).parameters
        assert not option or option in parameters, f"{owner}({option}=)"


def test_the_algorithms_are_those_there_are() -> None:
    import dagrl.nodes
    from dagrl.graph.losses import Loss
    from dagrl.graph.node import Node

    section = README.split("## Algorithms")[1].split("\n## ")[0]
    assert sorted(re.findall(r"\(pipelines/(\w+)\.py\)", section)) == sorted(
        p.stem for p in (ROOT / "pipelines").glob("*.py")
    )
    named = set(re.findall(r"`(\w+)[`(]", section))
    declared = {name: value for name, value in vars(dagrl.nodes).items() if isinstance(value, Node | Loss)}
    missing = {
        name
        for name, value in declared.items()
        if isinstance(value, Loss) or "advantages" in {write.name for write in value.contract.writes}
    } - named
    assert not missing
    assert named - declared.keys() <= {*dagrl.__all__, "rewards"}
