"""Prompts that do not divide by the ranks: the same update as in one process, and an evaluation over every row once."""

import json
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file
from support import event_lines, load_grpo, metrics_lines

from dagrl.executor.base import Runtime
from dagrl.executor.local import LocalRuntime
from dagrl.executor.ray import RayRuntime
from dagrl.trainer.loop import run

#: The packaged model knows the answer of these, and nobody that of the last.
EASY = [{"prompt": f"{a} {a + 400}", "answer": str(a + 400)} for a in (123, 234, 345, 456)]
HARD = {"prompt": "123 523", "answer": "never"}


pytestmark = pytest.mark.usefixtures("one_thread_each")


def train(
    runtime: Runtime, out: Path, *, evaluate: bool = False, **values: Any
) -> tuple[list[dict[str, Any]], dict[str, torch.Tensor]]:
    pipelines = load_grpo(precision="fp32", **values).pipelines
    run(pipelines if evaluate else pipelines[:1], out=str(out), steps=1, runtime=runtime)
    return metrics_lines(out), load_file(out / "model" / "model.safetensors")


@pytest.mark.long
@pytest.mark.parametrize("mini_batch_size", [7, 0])
def test_ten_prompts_on_four_ranks_learn_what_one_rank_learns(
    mini_batch_size: int, ray_session: object, tmp_path: Path
) -> None:
    values = {"batch_size": 10, "n": 3, "mini_batch_size": mini_batch_size}
    (one,), alone = train(LocalRuntime(), tmp_path / "one", workers=1, **values)
    (four,), spread = train(RayRuntime(deadline=120.0), tmp_path / "four", workers=4, **values)
    assert one["actor/grad_norm"] > 0
    assert one.pop("pipeline") == four.pop("pipeline")
    assert one == pytest.approx(four, rel=1e-5, abs=1e-6, nan_ok=True)
    assert max(float((weight - spread[name]).abs().max()) for name, weight in alone.items()) <= 1e-6
    rows = {event["op"]: event["rows"] for event in event_lines(tmp_path / "four") if event["event"] == "OpFinished"}
    assert set(rows.values()) == {30}


@pytest.mark.long
def test_an_evaluation_of_five_rows_on_two_ranks_is_the_mean_over_five(ray_session: object, tmp_path: Path) -> None:
    data = tmp_path / "data"
    data.mkdir()
    for name, rows in (("train", EASY), ("test", [*EASY, HARD])):
        (data / f"{name}.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    values = {"batch_size": 2, "n": 2, "workers": 2}
    lines, _ = train(RayRuntime(deadline=120.0), tmp_path / "run", evaluate=True, data=data, **values)
    first = next(line for line in lines if line["pipeline"] == "eval")
    assert first["reward/mean"] == first["reward/mean/test"] == pytest.approx(0.8)
    reports = [e for e in event_lines(tmp_path / "run") if e["event"] == "OpFinished" and e["op"] == "report"]
    assert [event["rows"] for event in reports] == [5, 5]
