"""The command on Ray where something is wrong: what it says, in seconds, and that the next run works."""

import re
import subprocess
import time
from contextlib import suppress
from pathlib import Path

import psutil
import pytest
from killing import ENVIRONMENT, command, forty_rows, start
from support import ROOT, edited_pipeline, metrics_lines

RAY = ("--executor", "ray", "--set", "workers=2")

FRAGILE = """
from pathlib import Path

from jaxtyping import Float32, Int64
from torch import Tensor
from dagrl import Metrics, node


@node()
def fragile(rewards: Float32[Tensor, " B"], group_ids: Int64[Tensor, " B"]) -> Metrics:
    if 7 in group_ids.tolist() and not Path("{flag}").exists():
        raise RuntimeError("group 7 is broken")
    return Metrics()
"""


def run(line: list[str], seconds: float, **environment: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        line, cwd=ROOT, env={**ENVIRONMENT, **environment}, capture_output=True, text=True, timeout=seconds
    )


def run_and_watch(line: list[str]) -> tuple[int, str]:
    """The exit code and what the command said; what it started is gone within seconds, whoever else runs Ray here."""
    process, family = start(line), set()
    end = time.monotonic() + 100
    while process.poll() is None and time.monotonic() < end:
        with suppress(psutil.Error):
            family.update(psutil.Process(process.pid).children(recursive=True))
        time.sleep(0.2)
    process.kill()
    _, errors = process.communicate()
    assert len(family) > 4
    _, alive = psutil.wait_procs(family, timeout=10)
    assert not alive
    return process.returncode, errors


@pytest.mark.long
def test_a_node_that_raises_on_one_rank_and_three_runs_in_a_row(tmp_path: Path) -> None:
    """Group 7 comes in step 2, on the second rank: twice the run ends there, and goes on once the fault is mended."""
    data = forty_rows(tmp_path)
    (tmp_path / "fragile_node.py").write_text(FRAGILE.format(flag=tmp_path / "mended"))
    file = edited_pipeline(
        tmp_path,
        ("from dagrl.nodes import (", "from fragile_node import fragile\nfrom dagrl.nodes import ("),
        ("        advantages = advantage", "        fragile(reward)\n        advantages = advantage"),
    )
    line = command(data, tmp_path / "run", 3, "--save-every", "1", "--resume", "auto", *RAY)
    line[line.index("pipelines/grpo.py")] = str(file)
    for _ in range(2):
        code, errors = run_and_watch(line)
        assert code == 1, errors
        assert "RuntimeError: group 7 is broken" in errors
        assert re.search(r"rank 1 of worker group `main` \(node 127\.0\.0\.1\)", errors), errors
        assert re.search(r"in node `fragile` \(\S+:\d+\) of pipeline `grpo`, step 2", errors)
        assert re.search(r"saved after step 1; go on with: dagrl run .* --resume auto", errors)
    (tmp_path / "mended").touch()
    code, errors = run_and_watch(line)
    assert code == 0, errors
    assert [line["step"] for line in metrics_lines(tmp_path / "run") if line["pipeline"] == "grpo"] == [1, 2, 3]


@pytest.mark.parametrize(
    ("sets", "said"),
    [
        (("workers=5000",), r"need 5000 processes .*, the ray executor has \d+"),
        (("workers=0",), None),
    ],
    ids=["too many", "plan of what there is"],
)
def test_a_pool_larger_than_the_machine_is_refused_before_ray_starts(
    sets: tuple[str, ...], said: str | None, tmp_path: Path
) -> None:
    began = time.monotonic()
    words = [word for text in sets for word in ("--set", text)]
    line = command(forty_rows(tmp_path), tmp_path / "run", 1, "--executor", "ray", *words)
    if said is None:
        line = [*line[:3], "plan", "pipelines/grpo.py", "--executor", "ray", *words]
    done = run(line, 60)
    assert time.monotonic() - began < 30
    assert done.returncode == (0 if said is None else 2), done.stderr
    assert "Traceback" not in done.stderr
    if said is not None:
        assert re.search(said, done.stderr), done.stderr
        assert not (tmp_path / "run").exists()


@pytest.mark.parametrize("how", ["variable", "option"])
def test_an_address_where_no_ray_is_ends_the_command_in_seconds(how: str, tmp_path: Path) -> None:
    began = time.monotonic()
    line = command(forty_rows(tmp_path), tmp_path / "run", 1, *RAY)
    given = {"RAY_ADDRESS": "127.0.0.1:1"} if how == "variable" else {}
    done = run(line if given else [*line, "--address", "127.0.0.1:1"], 60, **given)
    assert time.monotonic() - began < 30
    assert done.returncode == 2, done.stderr
    assert "no Ray cluster can be joined at `127.0.0.1:1`" in done.stderr
    assert "Traceback" not in done.stderr
    assert not (tmp_path / "run").exists()


def test_an_address_for_a_run_in_this_process_is_refused(tmp_path: Path) -> None:
    line = command(forty_rows(tmp_path), tmp_path / "run", 2, "--executor", "local", "--address", "127.0.0.1:6379")
    done = run(line, 60)
    assert done.returncode == 2
    assert "`--address` names a Ray to join, and `--executor local` runs in this process" in done.stderr
    assert not (tmp_path / "run").exists()
