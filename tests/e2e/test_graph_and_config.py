"""What a graph and its configuration promise, through the command line and whole runs."""

import json
import sys
from pathlib import Path
from typing import Any

import pytest
from support import GRPO, ROOT, edited_pipeline, event_lines, metrics_lines, run_grpo

from dagrl.cli.main import _exit_code
from dagrl.cli.pipeline_file import load_pipelines
from dagrl.compiler import compile_pipelines
from dagrl.trainer.loop import run

SMALL = ("--set", "batch_size=4", "--steps", "1")
STEP_ALONE = ("    return step, held_out(cfg, actor)", "    return step")


def dagrl(monkeypatch: pytest.MonkeyPatch, *arguments: str) -> int:
    monkeypatch.setattr(sys, "argv", ["dagrl", *arguments])
    return _exit_code()


def broken_model(folder: Path) -> Path:
    """A folder that looks like a model, and cannot be loaded."""
    folder.mkdir()
    (folder / "config.json").write_bytes((ROOT / "dagrl/zoo/tiny/config.json").read_bytes())
    (folder / "model.safetensors").write_bytes(b"no weights")
    return folder


@pytest.mark.parametrize("kl", ["0", "0.0"])
def test_without_kl_nothing_of_the_reference_is_loaded(kl: str, tmp_path: Path, monkeypatch, capsys) -> None:
    model = broken_model(tmp_path / "broken")
    file = edited_pipeline(
        tmp_path, STEP_ALONE, ('WorkerGroup("ref", policy(cfg.model', f'WorkerGroup("ref", policy("{model}"')
    )
    out = tmp_path / "run"
    assert dagrl(monkeypatch, "run", str(file), *SMALL, "--set", f"kl={kl}", "--out", str(out)) == 0
    (plan,) = json.loads((out / "plan.json").read_text())
    assert [group["name"] for group in plan["groups"]] == ["actor"]
    assert "ref_logprob" not in {op["id"] for op in plan["ops"]}
    capsys.readouterr()
    assert dagrl(monkeypatch, "run", str(file), *SMALL, "--set", "kl=0.1", "--out", str(tmp_path / "with")) == 2
    assert "cannot be loaded" in capsys.readouterr().err


DIAMOND = """
from dataclasses import dataclass

from jaxtyping import Bool, Float32, Int64
from torch import Tensor

from dagrl import Metrics, Objects, Pipeline, ResourcePool, WorkerGroup, adamw, node, policy
from dagrl.nodes import generate, ppo_clip, prompts, old_logprob, ref_logprob, update_policy, verify


@node(writes="values")
def token_values(response_lengths: Int64[Tensor, " B"], response_mask: Bool[Tensor, "B T"]) -> Float32[Tensor, "B T"]:
    return (response_lengths.float() / 8).unsqueeze(-1) * response_mask


@node(writes="advantages", split="group")
def joined(
    rewards: Float32[Tensor, " B"],
    ref_logprobs: Float32[Tensor, "B T"],
    values: Float32[Tensor, "B T"],
    response_mask: Bool[Tensor, "B T"],
) -> Float32[Tensor, "B T"]:
    return (rewards.unsqueeze(-1) + 0.01 * ref_logprobs - values) * response_mask


@dataclass
class Config:
    order: str = "reward,reference,value"


def build(cfg: Config) -> Pipeline:
    pool = ResourcePool("main")
    actor = WorkerGroup("actor", policy("zoo:tiny", optimizer=adamw(lr=1e-3), precision="fp32"), pool=pool)
    ref = WorkerGroup("ref", policy("zoo:tiny", precision="fp32"), pool=pool)
    with Pipeline("diamond", steps=2) as step:
        batch = prompts(data="zoo:larger", batch_size=4, n=2)
        rollout = generate(actor, batch, max_new_tokens=6)
        branches = {
            "reward": lambda: verify(batch, rollout),
            "reference": lambda: ref_logprob(ref, rollout),
            "value": lambda: token_values(rollout),
        }
        made = [branches[name]() for name in cfg.order.split(",")]
        advantage = joined(rollout, *made)
        update_policy(actor, rollout, old_logprob(actor, rollout), advantage, loss=ppo_clip())
    return step
"""
BRANCHES = ("verify", "ref_logprob", "token_values")


def diamond(folder: Path, order: str) -> tuple[list[dict[str, Any]], list[str]]:
    """Metrics and started ops of a run whose branches are called in this order."""
    file = folder / "diamond.py"
    file.write_text(DIAMOND)
    out = folder / order
    run(load_pipelines(str(file), {"order": order}).pipelines, out=str(out))
    return metrics_lines(out), [event["op"] for event in event_lines(out) if event["event"] == "OpStarted"]


def test_a_diamond_runs_each_branch_once_and_its_order_changes_nothing(tmp_path: Path) -> None:
    first, ops = diamond(tmp_path, "reward,reference,value")
    assert sorted(ops) == sorted([*BRANCHES, "prompts", "generate", "joined", "update_policy"] * 2)
    for order in ("value,reference,reward", "reference,value,reward"):
        metrics, others = diamond(tmp_path, order)
        assert metrics == first
        assert sorted(others) == sorted(ops)
        assert others != ops


def test_the_branches_of_a_diamond_wait_for_nothing_but_the_rollout(tmp_path: Path) -> None:
    (tmp_path / "diamond.py").write_text(DIAMOND)
    (plan,) = compile_pipelines(load_pipelines(str(tmp_path / "diamond.py")).pipelines)
    after = {op.id: set(op.after) for op in plan.runs}
    assert all(after[name] <= {"prompts", "generate"} for name in BRANCHES)
    assert after["joined"] >= set(BRANCHES)


MISBEHAVING = """
import torch
from jaxtyping import Float32
from torch import Tensor

from dagrl import node


class Odd(Exception):
    def __reduce__(self):
        raise TypeError("cannot be pickled")


@node(writes="rewards")
def spoilt(rewards: Float32[Tensor, " B"]) -> Float32[Tensor, " B"]:
    {body}
"""


@pytest.mark.parametrize(
    ("body", "said"),
    [
        ("return rewards[1:]", "`spoilt` returned 15 rows for `rewards`, it was given 16"),
        ("return rewards.double()", "`spoilt` returned float64[16] for `rewards`, declared f32[B]"),
        ("return rewards.add_(1)", "`spoilt` edited its input `rewards`"),
        ("raise Odd('the reward ran away')", "Odd: the reward ran away"),
    ],
    ids=["fewer rows", "dtype", "edits its input", "unpicklable exception"],
)
def test_a_plugin_node_that_misbehaves_is_named(body: str, said: str, tmp_path: Path, monkeypatch, capsys) -> None:
    (tmp_path / f"spoilt_{len(body)}.py").write_text(MISBEHAVING.format(body=body))
    file = edited_pipeline(
        tmp_path,
        STEP_ALONE,
        ("from dagrl.nodes import (", f"from spoilt_{len(body)} import spoilt\nfrom dagrl.nodes import ("),
        ("reward = verify(batch, rollout)", "reward = spoilt(verify(batch, rollout))"),
    )
    assert dagrl(monkeypatch, "run", str(file), *SMALL, "--out", str(tmp_path / "run")) != 0
    shown = capsys.readouterr().err
    assert "spoilt" in shown
    assert said in shown


def test_a_plugin_node_that_gives_rows_another_order_is_named_by_the_suite(tmp_path, monkeypatch, capsys) -> None:
    file = tmp_path / "turned.py"
    file.write_text(MISBEHAVING.format(body="return rewards.flip(0)"))
    assert dagrl(monkeypatch, "check", str(file)) == 2
    assert "node `spoilt`: depends on the order of the rows" in capsys.readouterr().err


def test_mini_batches_that_divide_the_rows(tmp_path: Path) -> None:
    """32 prompts x n 8 in mini-batches of 64 rows: four optimizer steps."""
    result = run_grpo(tmp_path / "run", steps=1, batch_size=32, n=8, mini_batch_size=64)
    assert result.records[0].metrics["actor/grad_norm"] > 0
    rows = {line["rows"] for line in event_lines(tmp_path / "run") if line["event"] == "OpFinished"}
    assert rows == {256}
    values = {"batch_size": "32", "n": "8", "mini_batch_size": "64"}
    plan, _ = compile_pipelines(load_pipelines(str(GRPO), values).pipelines)
    assert plan.kept["old_logprob"] == "`update_policy` takes 256 rows in mini-batches of 64"


def test_a_small_number_is_a_number_and_arrives_as_one(tmp_path: Path, monkeypatch) -> None:
    out = tmp_path / "run"
    file = edited_pipeline(tmp_path, STEP_ALONE)
    assert dagrl(monkeypatch, "run", str(file), *SMALL, "--set", "lr=1e-6", "--out", str(out)) == 0
    assert json.loads((out / "config.json").read_text())["config"]["lr"] == 1e-6
    assert metrics_lines(out)[0]["actor/lr"] == pytest.approx(1e-6 / 20)


@pytest.mark.parametrize("text", ["false", "none", "None", "off", "null", ""])
def test_an_optional_knob_is_switched_off(text: str, tmp_path: Path, monkeypatch, capsys) -> None:
    file = edited_pipeline(
        tmp_path,
        STEP_ALONE,
        ("    steps: int = 240", "    steps: int = 240\n    limit: int | None = 64"),
        ("generate(actor, batch, max_new", "generate(actor, batch, max_prompt_tokens=cfg.limit, max_new"),
    )
    assert dagrl(monkeypatch, "plan", str(file)) == 0
    assert "max_prompt_tokens=64" in capsys.readouterr().out
    assert dagrl(monkeypatch, "plan", str(file), "--set", f"limit={text}") == 0
    assert "max_prompt_tokens=None" in capsys.readouterr().out


def test_an_evaluation_takes_what_there_is_where_a_step_needs_a_whole_batch(
    tmp_path: Path, monkeypatch, capsys
) -> None:
    file = edited_pipeline(tmp_path, ("batch_size=1024", "batch_size=cfg.batch_size"))
    assert dagrl(monkeypatch, "plan", str(file), "--set", "batch_size=3000") == 0
    capsys.readouterr()
    assert dagrl(monkeypatch, "plan", str(file), "--set", "batch_size=1000000") == 2
    assert capsys.readouterr().err.count("fewer than batch_size=1000000") == 1


def test_a_run_compiles_once(tmp_path: Path, monkeypatch) -> None:
    """The check of a node is asked once, by a plan and by a run."""
    (tmp_path / "asked.py").write_text(
        "from pathlib import Path\n"
        "from jaxtyping import Float32\nfrom torch import Tensor\nfrom dagrl import node\n"
        "def count(call):\n"
        "    with Path(__file__).with_suffix('.txt').open('a') as file:\n"
        "        file.write(call.name + '\\n')\n"
        "    return []\n"
        '@node(writes="rewards", check=count)\n'
        'def asked(rewards: Float32[Tensor, " B"]) -> Float32[Tensor, " B"]:\n    return rewards\n'
    )
    file = edited_pipeline(
        tmp_path,
        STEP_ALONE,
        ("from dagrl.nodes import (", "from asked import asked\nfrom dagrl.nodes import ("),
        ("reward = verify(batch, rollout)", "reward = asked(verify(batch, rollout))"),
    )
    assert dagrl(monkeypatch, "run", str(file), *SMALL, "--out", str(tmp_path / "run")) == 0
    assert (tmp_path / "asked.txt").read_text() == "asked\n"
