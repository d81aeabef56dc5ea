"""Runs with a critic and with a reward model in this process: what is read when, stop and go on, what is left."""

import json
import signal
from pathlib import Path
from typing import Any

import pytest
import torch
from critic_cases import make_model
from ppo_cases import ppo_file, scored_by
from safetensors.torch import load_file
from support import metrics_lines

from dagrl import ResourcePool, WorkerGroup, reward_model
from dagrl.cli.pipeline_file import LoadedPipelines, load_pipelines
from dagrl.errors import ResumeError
from dagrl.storage.checkpoints import Checkpoints
from dagrl.storage.folder import Folder
from dagrl.trainer.loop import run
from dagrl.trainer.records import Record, RunResult
from dagrl.trainer.saving import Saving
from dagrl.trainer.stopping import StopRequest
from dagrl.workers.reward_model import RewardModelWorker

QUICK = {"batch_size": "4", "eval_every": "1000", "precision": "fp32"}


def load(file: Path, **values: Any) -> LoadedPipelines:
    return load_pipelines(str(file), {**QUICK, **{key: str(value) for key, value in values.items()}})


def go(
    loaded: LoadedPipelines, out: Path, *, steps: int = 3, stop_after: int | None = None, **options: Any
) -> RunResult:
    """Run the step, resuming if there is something to."""
    stop = StopRequest()

    def on_record(record: Record) -> None:
        if record.step == stop_after:
            stop.signal = signal.SIGTERM

    return run(
        loaded.pipelines[:1], out=str(out), steps=steps, stop=stop, on_record=on_record, resume="auto", **options
    )


def weights(out: Path, group: str) -> bytes:
    return Folder(str(out)).read(f"model/{group}/model.safetensors")


@pytest.mark.parametrize("precision", ["fp32", "bf16"])
@pytest.mark.parametrize("cut", [1, 3])
def test_a_run_with_a_critic_goes_on_to_the_bit(tmp_path: Path, cut: int, precision: str) -> None:
    loaded = load(ppo_file(tmp_path / "file"), precision=precision, mini_batch_size=2, kl=0)
    go(loaded, tmp_path / "whole", steps=4)
    first = go(loaded, tmp_path / "cut", steps=4, stop_after=cut)
    assert first.step == cut
    second = go(loaded, tmp_path / "cut", steps=4)
    assert (second.step, second.resumed_from) == (4, cut)
    assert metrics_lines(tmp_path / "whole") == metrics_lines(tmp_path / "cut")
    for group in ("actor", "critic"):
        assert weights(tmp_path / "whole", group) == weights(tmp_path / "cut", group)


def test_the_checkpoint_holds_the_critic_and_the_run_leaves_it(tmp_path: Path) -> None:
    go(load(ppo_file(tmp_path / "file"), kl=0), tmp_path / "run", steps=1, saving=Saving(every=1))
    (checkpoint,) = (tmp_path / "run/checkpoints").iterdir()
    parts = {path.stem for path in checkpoint.glob("*.safetensors")}
    assert {"actor-00000", "critic-00000"} <= parts
    state = load_file(checkpoint / "critic-00000.safetensors")
    assert {"model/score.weight", "adamw/score.weight/exp_avg", "model/model.norm.weight"} <= set(state)
    exported = json.loads((tmp_path / "run/model/critic/config.json").read_text())
    assert exported["architectures"] == ["LlamaForTokenClassification"]
    left = load_file(tmp_path / "run/model/critic/model.safetensors")
    assert torch.equal(left["score.weight"], state["model/score.weight"])
    assert bool(left["score.weight"].any())


def test_the_update_of_the_critic_sees_the_values_from_before_it(tmp_path: Path) -> None:
    """In each step's single mini-batch the update's own values are those of `values`: nothing is clipped."""
    go(load(ppo_file(tmp_path / "file")), tmp_path / "run", steps=3)
    lines = metrics_lines(tmp_path / "run")
    assert [line["critic/clip_fraction"] for line in lines] == [0, 0, 0]
    assert [line["critic/optimizer_steps"] for line in lines] == [1, 1, 1]
    assert all(line["actor/clip_fraction"] == 0 and line["actor/grad_norm"] > 0 for line in lines)
    assert all(line["critic/grad_norm"] > 0 for line in lines)
    assert lines[0]["critic/lr"] == pytest.approx(5e-4)
    assert lines[0]["critic/explained_variance"] == pytest.approx(0, abs=1e-6)


def test_a_trained_critic_is_gone_on_from(tmp_path: Path) -> None:
    """The folder that a run leaves is a `critic_model` of the next."""
    go(load(ppo_file(tmp_path / "file"), kl=0, critic_lr=0.01), tmp_path / "first", steps=2)
    go(
        load(ppo_file(tmp_path / "file"), kl=0, critic_model=tmp_path / "first/model/critic"),
        tmp_path / "next",
        steps=1,
    )
    (line,) = metrics_lines(tmp_path / "next")
    assert line["critic/explained_variance"] != pytest.approx(0, abs=1e-6)


@pytest.mark.parametrize("family", ["llama", "gpt2"])
def test_a_run_with_a_reward_model(tmp_path: Path, family: str) -> None:
    """Its rewards are the scores of the sampled conversations."""
    folder = make_model(tmp_path / "scorer", family, "sequence")
    file = ppo_file(tmp_path / "file", *scored_by(folder))
    go(load(file, kl=0), tmp_path / "run", steps=2)
    lines = metrics_lines(tmp_path / "run")
    assert all(line["reward/max"] > line["reward/min"] for line in lines)
    samples = [
        (sample["prompt"], sample["response"], sample["reward"])
        for text in (tmp_path / "run/events").glob("*")
        for event in map(json.loads, text.read_text().splitlines())
        for sample in event.get("samples", ())
    ]
    assert samples
    worker = RewardModelWorker(WorkerGroup("scorer", reward_model(folder, precision="fp32"), pool=ResourcePool("main")))
    messages = [[{"role": "user", "content": prompt}] for prompt, _, _ in samples]
    scores = worker.score(messages, [response for _, response, _ in samples])
    assert scores.tolist() == pytest.approx([reward for _, _, reward in samples], rel=1e-4, abs=1e-5)


def test_a_step_without_rows_skips_both_updates(tmp_path: Path) -> None:
    edits = (
        ("    prompts,\n", "    prompts,\n    short_prompts,\n"),
        ("        reward = verify(batch, rollout)\n",
         "        reward = verify(batch, rollout)\n        none = short_prompts(actor, batch, max_prompt_tokens=1)\n"),
        ("update_critic(value_group, rollout,", "update_critic(value_group, none, rollout,"),
        ("            actor, rollout, old,", "            actor, none, rollout, old,"),
    )  # fmt: skip
    (record,) = go(load(ppo_file(tmp_path / "file", *edits), kl=0), tmp_path / "run", steps=1).records
    assert record.metrics["skipped_updates"] == 2


def test_a_checkpoint_that_does_not_know_an_option_had_its_default(tmp_path: Path) -> None:
    loaded = load(ppo_file(tmp_path / "file"), kl=0)
    go(loaded, tmp_path / "run", steps=3, stop_after=1)
    checkpoints = Checkpoints(str(tmp_path / "run/checkpoints"), keep=2)
    found = checkpoints.latest_valid()
    assert found is not None
    built = found.state["run"]["built"]
    assert built["pipelines"]["ppo"]["calls"]["generate"]["options"].pop("top_p") == "1.0"
    assert built["groups"]["actor"].pop("from_scratch") is False
    checkpoints.publish(found.step, list(found.parts), found.state)
    assert go(loaded, tmp_path / "run", steps=3, stop_after=2).resumed_from == 1
    newest = checkpoints.latest_valid()
    assert newest is not None
    newest.state["run"]["built"]["groups"]["actor"].pop("model")  # which has no default
    checkpoints.publish(newest.step, list(newest.parts), newest.state)
    with pytest.raises(ResumeError, match=r"`groups.actor.model` was `nothing`"):
        go(loaded, tmp_path / "run", steps=3)
