"""Models that exchange tokens are compared before anything runs."""

import json
import shutil
import subprocess
import sys
from pathlib import Path

import pytest
from jaxtyping import Float32, Int64
from packaged_gguf import NAME, install, prepare_site
from torch import Tensor

from dagrl import Pipeline, ResourcePool, WorkerGroup, adamw, critic, node, nodes, policy, reward_model
from dagrl.compiler import LOCAL, check_before_run, compile_pipelines
from dagrl.errors import CompileError, Problem
from dagrl.graph import Policy
from dagrl.graph.pipeline import Edge
from dagrl.nodes import (
    gae_advantage,
    kl_loss,
    old_logprob,
    ppo_clip,
    ref_logprob,
    report,
    reward_model_score,
    teacher_topk,
    topk_distill,
    update_critic,
    update_policy,
    value_clip,
    values,
    verify,
)
from dagrl.zoo import model_folder

POOL = ResourcePool("main")
ACTOR = WorkerGroup("actor", policy("zoo:tiny", optimizer=adamw(lr=0.1)), pool=POOL)


def swapped(folder: Path) -> str:
    """The packaged model with two of its tokens' ids exchanged."""
    shutil.copytree(model_folder("tiny"), folder)
    tokenizer = json.loads((folder / "tokenizer.json").read_text())
    vocabulary = tokenizer["model"]["vocab"]
    first, second = list(vocabulary)[-2:]
    vocabulary[first], vocabulary[second] = vocabulary[second], vocabulary[first]
    (folder / "tokenizer.json").write_text(json.dumps(tokenizer))
    return str(folder)


def shrunk(folder: Path) -> str:
    """The packaged model whose config names fewer tokens than it has."""
    shutil.copytree(model_folder("tiny"), folder)
    config = json.loads((folder / "config.json").read_text())
    (folder / "config.json").write_text(json.dumps({**config, "vocab_size": 80}))
    return str(folder)


def one_label(folder: str) -> str:
    """The config of a reward model."""
    file = Path(folder) / "config.json"
    config = json.loads(file.read_text())
    labelled = {**config, "architectures": ["LlamaForSequenceClassification"], "id2label": {"0": "score"}}
    file.write_text(json.dumps(labelled))
    return folder


def checked(step: Pipeline) -> list[Problem]:
    plans = compile_pipelines([step], LOCAL)
    try:
        check_before_run([step], plans)
    except CompileError as error:
        return list(error.problems)
    return []


def rollout_of(n: int = 2, actor: WorkerGroup = ACTOR) -> tuple[Edge, Edge]:
    batch = nodes.prompts(data="zoo:larger", batch_size=2, n=n)
    return batch, nodes.generate(actor, batch, max_new_tokens=2)


def with_critic(model: str) -> Pipeline:
    group = WorkerGroup("critic", critic(model, optimizer=adamw(lr=0.1)), pool=POOL)
    with Pipeline("p") as step:
        batch, rollout = rollout_of()
        value = values(group, rollout)
        advantage = gae_advantage(rollout, value, verify(batch, rollout))
        update_critic(group, rollout, value, advantage, loss=value_clip())
        update_policy(ACTOR, rollout, old_logprob(ACTOR, rollout), advantage, loss=ppo_clip())
    return step


def with_reference(model: str, kl: float = 0.1, actor: str = "zoo:tiny") -> Pipeline:
    trained = WorkerGroup("actor", policy(actor, optimizer=adamw(lr=0.1)), pool=POOL)
    ref = WorkerGroup("ref", policy(model), pool=POOL)
    with Pipeline("p") as step:
        batch, rollout = rollout_of(actor=trained)
        advantage = nodes.grpo_advantage(rollout, verify(batch, rollout))
        edges = (old_logprob(trained, rollout), ref_logprob(ref, rollout), advantage)
        update_policy(trained, rollout, *edges, loss=ppo_clip() + kl * kl_loss())
    return step


def with_teacher(model: str) -> Pipeline:
    teacher = WorkerGroup("teacher", policy(model), pool=POOL)
    with Pipeline("p") as step:
        _, rollout = rollout_of()
        update_policy(ACTOR, rollout, teacher_topk(teacher, rollout, k=4), loss=topk_distill())
    return step


@pytest.mark.parametrize("make", [with_critic, with_reference, with_teacher])
@pytest.mark.parametrize("change", [swapped, shrunk])
def test_a_model_that_numbers_tokens_otherwise_is_refused(make, change, tmp_path: Path) -> None:
    model = change(tmp_path / "other")
    name = make.__name__.removeprefix("with_").replace("reference", "ref")
    first = next(problem for problem in checked(make(model)) if f"has `{name}` (`{model}`) read" in problem.what)
    assert "that `actor` (`zoo:tiny`) wrote, and the two do not number tokens alike: " in first.what
    assert first.at is not None
    assert "test_vocabularies.py" in first.at.file
    assert str(first.fix).startswith(f"give `{name}` a model with the tokenizer of `zoo:tiny`")
    assert not checked(make("zoo:expert"))


def test_a_packaged_actor_is_compared_before_it_is_converted(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    pytest.importorskip("gguf")
    install(prepare_site(tmp_path, monkeypatch))
    (problem,) = checked(with_reference("zoo:tiny", actor=f"pypi:{NAME}"))
    assert f"has `ref` (`zoo:tiny`) read the `input_ids` that `actor` (`pypi:{NAME}`) wrote" in problem.what
    assert not (tmp_path / "cache").exists()


def test_each_pair_of_groups_is_told_once(tmp_path: Path) -> None:
    assert len(checked(with_critic(swapped(tmp_path / "other")))) == 1


def test_what_a_teacher_names_must_be_the_actors_too(tmp_path: Path) -> None:
    found = [problem.what for problem in checked(with_teacher(swapped(tmp_path / "other")))]
    assert len(found) == 2
    assert any("`update_policy` has `actor` (`zoo:tiny`) read the `teacher_topk_ids`" in what for what in found)


def test_a_call_that_is_pruned_is_not_asked(tmp_path: Path) -> None:
    assert not checked(with_reference(swapped(tmp_path / "other"), kl=0.0))


@node(writes="input_ids")
def handed_on(input_ids: Int64[Tensor, "B S"]) -> Int64[Tensor, "B S"]:
    """The same tokens, by a node without a model."""
    return input_ids.clone()


def test_tokens_are_those_of_the_model_that_wrote_them_whoever_hands_them_on(tmp_path: Path) -> None:
    ref = WorkerGroup("ref", policy(swapped(tmp_path / "other")), pool=POOL)
    columns = ("attention_mask", "position_ids", "response_mask", "temperatures")
    with Pipeline("p") as step:
        _, rollout = rollout_of()
        report(sums(ref_logprob(ref, rollout.only(*columns), handed_on(rollout))))
    assert len(checked(step)) == 1


@node(writes="rewards")
def sums(ref_logprobs: Float32[Tensor, "B T"]) -> Float32[Tensor, " B"]:
    """A number for each row."""
    return ref_logprobs.sum(1)


@node(writes="rewards")
def first_prompt_token(ref: Policy, prompt_ids: Int64[Tensor, "B P"]) -> Float32[Tensor, " B"]:
    """A model's reading of the prompt alone."""
    return prompt_ids[:, 0].float()


@node(writes="rewards")
def first_answer_token(ref: Policy, responses: Int64[Tensor, "B T"]) -> Float32[Tensor, " B"]:
    """A model's reading of the answer alone."""
    return responses[:, 0].float()


@pytest.mark.parametrize(("reads", "column"), [(first_prompt_token, "prompt_ids"), (first_answer_token, "responses")])
def test_prompts_and_answers_are_tokens_too(reads, column: str, tmp_path: Path) -> None:
    ref = WorkerGroup("ref", policy(swapped(tmp_path / "other")), pool=POOL)
    with Pipeline("p") as step:
        _, rollout = rollout_of()
        report(reads(ref, rollout))
    (problem,) = checked(step)
    assert f"read the `{column}` that `actor`" in problem.what


def test_a_reward_model_has_a_tokenizer_of_its_own(tmp_path: Path) -> None:
    judge = WorkerGroup("judge", reward_model(one_label(swapped(tmp_path / "other"))), pool=POOL)
    with Pipeline("p") as step:
        batch, rollout = rollout_of()
        report(reward_model_score(judge, batch, rollout))
    assert not checked(step)


def test_the_check_loads_no_model_library() -> None:
    code = "import sys, dagrl.compiler.before_run; print('transformers' in sys.modules)"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True, timeout=60)
    assert done.stdout == "False\n"
