"""Text and numbers that break other programs: markup in responses and names, NaN and scalars of other libraries."""

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest
from support import ROOT, edited_pipeline, run_grpo

from dagrl.storage.segments import read_lines

MARKUP = ("[/red]", "[bold", "[link=x]", "\\[/", "[[/b]]")


def strict(folder: Path) -> list[dict]:
    """Every line of metrics and events, by a reader that takes no NaN."""

    def refuse(text: str) -> None:
        raise AssertionError(f"{text} is no JSON")

    files = [file for name in ("metrics", "events") for file in sorted((folder / name).glob("*.jsonl"))]
    lines = [line for file in files for line in file.read_bytes().split(b"\n")]
    return [json.loads(line, parse_constant=refuse) for line in lines if line]


ODD = """
import numpy as np
import torch
from jaxtyping import Float32
from torch import Tensor
from dagrl import Max, Mean, Metrics, Min, Sum, node


@node()
def odd(rewards: Float32[Tensor, " B"]) -> Metrics:
    nan, inf = float("nan"), float("inf")
    return Metrics({
        "größe/平均": Mean(0.5, 1.0), "nan": Mean(nan, 1.0), "inf": Max(inf), "-inf": Min(-inf), "none": Mean(0.0, 0.0),
        "numpy": Sum(np.float32(0.5)), "numpy int": Max(np.int64(3)), "tensor": Mean(torch.tensor(3.0), 2.0),
        "[/red]\\u2028": Sum(1.0), "numpy nan": Sum(np.float64("nan")), "tensor inf": Max(torch.tensor(inf)),
    })
"""


def test_metrics_of_every_kind_are_json_lines(tmp_path: Path) -> None:
    (tmp_path / "odd_metrics.py").write_text(ODD)
    file = edited_pipeline(
        tmp_path,
        ("from dagrl.nodes import (", "from odd_metrics import odd\nfrom dagrl.nodes import ("),
        ("        advantages = advantage", "        odd(reward)\n        advantages = advantage"),
    )
    run_grpo(tmp_path / "run", steps=2, file=file)
    lines = [line for line in strict(tmp_path / "run") if line.get("pipeline") == "grpo" and "event" not in line]
    assert len(lines) == 2
    wanted = {"größe/平均": 0.5, "nan": None, "inf": None, "-inf": None, "none": None, "numpy": 0.5, "numpy int": 3,
              "tensor": 1.5, "[/red]\u2028": 1, "numpy nan": None, "tensor inf": None}  # fmt: skip
    for line in lines:
        assert {name: line[name] for name in wanted} == wanted
    assert [line["step"] for line in read_lines(str(tmp_path / "run"), "metrics")] == [1, 2]


REWARD = """
def grade(data_source, solution_str, ground_truth, extra_info=None):
    if "1" in solution_str:
        raise ValueError("[/red] cannot grade [bold " + solution_str + " ä\\u2028")
    return 1.0 if solution_str == ground_truth else 0.0
"""
SHOUT = """
from jaxtyping import Float32
from torch import Tensor
from dagrl import Metrics, Objects, node


@node()
def shout(rewards: Float32[Tensor, " B"], response_text: Objects[str]) -> Metrics:
    print("[/red] [bold", response_text[0], "[/]")
    return Metrics()
"""


@pytest.mark.parametrize("terminal", [{"TERM": "dumb", "COLUMNS": "40"}, {"COLUMNS": "40", "FORCE_COLOR": "1"}])
def test_a_run_shows_markup_as_it_is(terminal: dict[str, str], tmp_path: Path) -> None:
    """In the names of data sources, in what a node prints and in what a reward function raises."""
    data = tmp_path / "data"
    data.mkdir()
    rows = [
        {"prompt": f"{number} {number + 1}", "answer": str(number + 1), "data_source": MARKUP[number % len(MARKUP)]}
        for number in range(200, 210)
    ]
    for split in ("train", "test"):
        (data / f"{split}.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    (tmp_path / "grading.py").write_text(REWARD)
    (tmp_path / "shouting.py").write_text(SHOUT)
    function = "reward_function(batch, rollout, function='grading.py:grade', max_failed_share=1.0)"
    edited_pipeline(
        tmp_path,
        ("from dagrl.nodes import (", "from shouting import shout\nfrom dagrl.nodes import ("),
        ("    verify,\n", "    reward_function,\n    verify,\n"),
        ("        reward = verify(batch, rollout)", f"        reward = {function}\n        shout(reward, rollout)"),
    )
    sets = [word for text in (f"data={data}", "batch_size=4", "n=2") for word in ("--set", text)]
    line = [sys.executable, "-m", "dagrl.cli", "run", "edited.py", *sets, "--steps", "2", "--out", "run"]
    environment = {**os.environ, "PYTHONPATH": str(ROOT), **terminal}
    environment.pop("TERM", None) if "TERM" not in terminal else None
    done = subprocess.run(line, cwd=tmp_path, env=environment, capture_output=True, text=True, timeout=100)
    assert done.returncode == 0, done.stderr
    assert "[/red] [bold " in done.stdout
    evaluation = next(line for line in done.stdout.splitlines() if line.startswith("eval after step 0:"))
    assert all(source in evaluation for source in MARKUP)
    assert "\x1b" not in done.stdout + done.stderr
    assert "Traceback" not in done.stderr
    assert any("reward/mean/[/red]" in line for line in strict(tmp_path / "run"))


def test_an_error_shows_markup_as_it_is(tmp_path: Path) -> None:
    text = SHOUT.replace("    print(", "    raise RuntimeError('[/red] [bold ä\\u2028')\n    print(")
    (tmp_path / "failing_shout.py").write_text(text)
    edited_pipeline(
        tmp_path,
        ("from dagrl.nodes import (", "from failing_shout import shout\nfrom dagrl.nodes import ("),
        ("        advantages = advantage", "        shout(reward, rollout)\n        advantages = advantage"),
    )
    line = [sys.executable, "-m", "dagrl.cli", "run", "edited.py", "--set", "batch_size=4", "--out", "run"]
    environment = {**os.environ, "PYTHONPATH": str(ROOT), "TERM": "dumb", "COLUMNS": "40"}
    done = subprocess.run(line, cwd=tmp_path, env=environment, capture_output=True, text=True, timeout=100)
    assert done.returncode == 1
    assert "RuntimeError: [/red] [bold " in done.stderr
    assert "in node `shout`" in done.stderr
    assert strict(tmp_path / "run")[-1]["outcome"] == "failed"
