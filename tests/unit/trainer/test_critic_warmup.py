"""Steps in which only the critic learns: the policy, its optimizer and its schedule wait."""

import logging
from pathlib import Path
from typing import Any

import pytest
import torch
from critic_cases import make_model, plan, rows_of, start
from ppo_cases import load_ppo
from safetensors.torch import load_file
from support import metrics_lines

from dagrl import LossColumns, Pipeline, ResourcePool, WorkerGroup, adamw, critic, nodes, policy
from dagrl.cli.pipeline_file import LoadedPipelines
from dagrl.compiler import LOCAL, compile_pipelines
from dagrl.data.metrics import merge_all
from dagrl.errors import CompileError
from dagrl.nodes import ppo_clip, update_policy
from dagrl.trainer.loop import run
from dagrl.trainer.stopping import StopRequest
from dagrl.trainer.waiting import warn_of_waiting
from dagrl.zoo import model_folder


def load(folder: Path, warmup: int, *edits: tuple[str, str]) -> LoadedPipelines:
    """PPO whose actor reaches its learning rate at once, which then decays to 0 over the run."""
    model = "policy(cfg.model, optimizer=adamw(lr=cfg.lr, decay='linear'), precision=cfg.precision)"
    group = ("grpo.actor_group(cfg)", f"WorkerGroup('actor', {model}, pool=ResourcePool('main', [cfg.workers]))")
    imported = ("import Pipeline, WorkerGroup", "import Pipeline, ResourcePool, WorkerGroup")
    sizes = {"batch_size": 4, "precision": "fp32", "mini_batch_size": 2, "kl": 0, "lr": 1e-3}
    return load_ppo(folder, group, imported, *edits, critic_warmup=warmup, **sizes)


def go(loaded: LoadedPipelines, out: Path, steps: int, stop_after: int | None = None) -> list[dict[str, Any]]:
    """The metrics of the steps so far."""
    stop = StopRequest()

    def on_record(record: Any) -> None:
        if record.step == stop_after:
            stop.signal = 15

    run(loaded.pipelines[:1], out=str(out), steps=steps, stop=stop, on_record=on_record, resume="auto")
    return metrics_lines(out)


def weights(out: Path, group: str) -> dict[str, torch.Tensor]:
    return load_file(out / "model" / group / "model.safetensors")


def test_only_the_critic_learns(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    with caplog.at_level(logging.WARNING):
        lines = go(load(tmp_path / "file", 2), tmp_path / "run", 2)
    assert "never does" in caplog.text
    start_weights = load_file(Path(model_folder("tiny")) / "model.safetensors")
    left = weights(tmp_path / "run", "actor")
    assert all(torch.equal(weight.float(), left[name].float()) for name, weight in start_weights.items())
    assert all(line["actor/critic_warmup"] == 1 and line["critic/optimizer_steps"] == 2 for line in lines)
    assert not any(name in line for line in lines for name in ("actor/lr", "actor/optimizer_steps", "actor/loss"))
    assert bool(weights(tmp_path / "run", "critic")["score.weight"].any())


def test_then_the_policy_learns_on_a_schedule_of_its_own(tmp_path: Path) -> None:
    lines = go(load(tmp_path / "file", 2), tmp_path / "run", 6)
    assert [line.get("actor/lr") for line in lines[:2]] == [None, None]
    assert [line["actor/lr"] for line in lines[2:]] == pytest.approx([1e-3, 7.5e-4, 5e-4, 2.5e-4])
    assert not any("actor/critic_warmup" in line for line in lines[2:])
    assert all(line["actor/grad_norm"] > 0 for line in lines[2:])


@pytest.mark.parametrize(("warmup", "warns"), [(1, False), (2, True), (3, True)])
def test_a_run_in_which_the_policy_never_learns_is_warned_of(
    warmup: int, warns: bool, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    warn_of_waiting(load(tmp_path / "file", warmup).pipelines[0], 2)
    said = f"`update_policy` has critic_warmup={warmup} and the run has 2 steps: the critic learns, `actor` never does"
    assert (said in caplog.text) is warns


@pytest.mark.parametrize("cut", [1, 2, 3])
def test_a_run_goes_on_to_the_bit(tmp_path: Path, cut: int) -> None:
    loaded = load(tmp_path / "file", 2)
    whole = go(loaded, tmp_path / "whole", 4)
    go(loaded, tmp_path / "cut", 4, stop_after=cut)
    assert go(loaded, tmp_path / "cut", 4) == whole
    for group in ("actor", "critic"):
        mine, other = weights(tmp_path / "whole", group), weights(tmp_path / "cut", group)
        assert all(torch.equal(weight, other[name]) for name, weight in mine.items())


def test_every_rank_says_that_it_waits_and_the_group_says_it_once() -> None:
    tokens, _, seeds = rows_of()
    of_rank: Any = update_policy.function(
        *(None, *tokens, seeds, LossColumns({})), loss=ppo_clip(), aliases={}, step=2, critic_warmup=2
    )
    assert merge_all([of_rank, of_rank]).numbers() == {"actor/critic_warmup": 1}


def test_the_schedule_runs_from_the_first_update_to_the_last_step(tmp_path: Path) -> None:
    model = make_model(tmp_path / "model")
    worker = start(model)
    spec = adamw(lr=1e-2, warmup=2, decay="linear")
    group = WorkerGroup("critic", critic(model, optimizer=spec, precision="fp32"), pool=ResourcePool("main"))
    late = type(worker)(group, total_steps=10)
    early = type(worker)(group, total_steps=7)
    tokens, columns, seeds = rows_of()
    for step in range(1, 8):
        now = late.update(tokens, columns, seeds, plan(step=step + 3, first_step=4)).numbers()["critic/lr"]
        assert now == early.update(tokens, columns, seeds, plan(step=step)).numbers()["critic/lr"]


@pytest.mark.parametrize(
    ("warmup", "trains", "is_updated", "said"),
    [
        (-1, True, True, "`critic_warmup` is -1"),
        (2, False, False, "`critic_warmup` is 2, but its rows come from no critic that learns"),
        (2, True, False, "`critic_warmup` is 2, but its rows come from no critic that learns"),
        (0, True, False, "group `critic` has an optimizer, but no call trains it"),
        (2, True, True, None),
        (0, False, False, None),
    ],
)
def test_it_waits_for_a_critic_that_learns(warmup: int, trains: bool, is_updated: bool, said: str | None) -> None:
    pool = ResourcePool("main")
    actor = WorkerGroup("actor", policy("zoo:tiny", optimizer=adamw(lr=0.1)), pool=pool)
    judge = WorkerGroup("critic", critic("zoo:tiny", optimizer=adamw(lr=0.1) if trains else None), pool=pool)
    with Pipeline("p") as step:
        batch = nodes.prompts(data="zoo:larger", batch_size=2)
        rollout = nodes.generate(actor, batch, max_new_tokens=2)
        value = nodes.values(judge, rollout)
        advantage = nodes.gae_advantage(rollout, nodes.verify(batch, rollout), value)
        old = nodes.old_logprob(actor, rollout)
        update_policy(actor, rollout, old, advantage, loss=ppo_clip(), critic_warmup=warmup)
        if is_updated:
            nodes.update_critic(judge, rollout, value, advantage, loss=nodes.value_clip())
    if said is None:
        compile_pipelines([step], LOCAL)
        return
    with pytest.raises(CompileError, match=said):
        compile_pipelines([step], LOCAL)
