"""Critics and reward models in a graph: what is refused, with both names and places, and what the plan says."""

from pathlib import Path

import pytest
from critic_cases import make_model
from ppo_cases import load_ppo

from dagrl import Pipeline, ResourcePool, WorkerGroup, adamw, critic, policy, reward_model
from dagrl.cli.plan_text import plan_head
from dagrl.compiler import LOCAL, Machine, Plan, compile_pipelines
from dagrl.compiler.plan import plan_from_dict
from dagrl.errors import CompileError, PipelineFileError, Problem
from dagrl.graph.specs import ModelSpec
from dagrl.nodes import (
    generate,
    kl_loss,
    ppo_clip,
    prompts,
    report,
    reward_model_score,
    update_critic,
    value_clip,
    values,
)

POOL = ResourcePool("main")
ACTOR = WorkerGroup("actor", policy("zoo:tiny", optimizer=adamw(lr=0.1)), pool=POOL)
CRITIC = WorkerGroup("critic", critic("zoo:tiny", optimizer=adamw(lr=0.1)), pool=POOL)
FROZEN = WorkerGroup("frozen", critic("zoo:tiny"), pool=POOL)


def problems_of(pipeline: Pipeline) -> list[Problem]:
    with pytest.raises(CompileError) as error:
        compile_pipelines([pipeline], LOCAL)
    return list(error.value.problems)


def values_on(group: WorkerGroup, **options) -> Pipeline:
    """A step that ends in a report, with values on some group."""
    with Pipeline("p") as step:
        rollout = generate(ACTOR, prompts(data="zoo:larger", batch_size=2), max_new_tokens=2)
        value = values(group, rollout)
        update_critic(CRITIC, rollout, value, value.rename(values="returns"), **{"loss": value_clip(), **options})
    return step


def test_a_group_of_another_role_is_named_with_both_places() -> None:
    (problem,) = problems_of(values_on(ACTOR))
    assert problem.what == f"`values` needs a Critic, `actor` is a Policy (made at {ACTOR.at})."
    assert problem.fix == "pass a worker group whose model is made by `critic(...)`"
    assert problem.at is not None
    assert problem.at.file == __file__ != ""
    assert "test_roles.py:" in problem.what


def test_each_role_refuses_the_others() -> None:
    scorer = WorkerGroup("scorer", reward_model("zoo:tiny"), pool=POOL)
    with Pipeline("p") as step:
        batch = prompts(data="zoo:larger", batch_size=2)
        report(reward_model_score(CRITIC, batch, generate(scorer, batch, max_new_tokens=2)))
    found = [problem.what.partition(" (")[0] for problem in problems_of(step)]
    assert "`reward_model_score` needs a RewardModel, `critic` is a Critic" in found
    assert "`generate` needs a Policy, `scorer` is a RewardModel" in found


@pytest.mark.parametrize(
    ("options", "said"),
    [
        ({"loss": value_clip(eps=0.0)}, "loss `value_clip`: `eps` is 0.0."),
        ({"epochs": 0}, "`update_critic`: `epochs` is 0."),
        ({"micro_batch_size": -1}, "`update_critic`: `micro_batch_size` is -1."),
        ({"norm_length": 3}, "`norm_length` (tokens) goes with"),
        ({"loss": value_clip() + kl_loss()},
         "loss term `kl_loss()` reads `new_logprobs`, but `update_critic` trains a Critic, which has no such output."),
        ({"loss": ppo_clip()}, "reads `new_logprobs`, but `update_critic` trains a Critic"),
    ],
)  # fmt: skip
def test_what_an_update_of_the_critic_refuses(options: dict, said: str) -> None:
    assert any(said in problem.what for problem in problems_of(values_on(CRITIC, **options)))


def test_a_loss_of_values_is_refused_by_the_policys_update(tmp_path: Path) -> None:
    """A value head shared with the policy: say where its loss belongs."""
    edit = ("loss = ppo_clip(eps=cfg.clip)", "loss = ppo_clip(eps=cfg.clip) + value_clip()")
    with pytest.raises(CompileError) as error:
        compile_pipelines(load_ppo(tmp_path, edit).pipelines, LOCAL)
    (problem,) = [problem for problem in error.value.problems if "new_values" in problem.what]
    assert "`update_policy` trains a Policy, which has no such output" in problem.what
    assert problem.fix == "give it to a call that trains a Critic"


def test_a_frozen_critic_gives_values_but_does_not_train() -> None:
    assert isinstance(compile_pipelines([values_on(FROZEN)], LOCAL)[0], Plan)
    with Pipeline("p") as step:
        rollout = generate(ACTOR, prompts(data="zoo:larger", batch_size=2), max_new_tokens=2)
        value = values(FROZEN, rollout)
        update_critic(FROZEN, rollout, value, value.rename(values="returns"), loss=value_clip())
    (problem,) = problems_of(step)
    assert problem.what == "`update_critic`: it trains `frozen`, whose critic is frozen."


@pytest.mark.parametrize(
    ("model", "said"),
    [
        (reward_model("zoo:tiny"), "`zoo:tiny` is a LlamaForCausalLM, which has no head that gives a score."),
        (reward_model("zoo:tiny", micro_batch_tokens=0), "the reward model has micro_batch_tokens=0."),
        (reward_model("./gone"), "there is no model folder `./gone`."),
        (reward_model("zoo:tiny", precision="fp8"), "`reward_model` got `precision='fp8'`"),
        (critic("./gone"), "there is no model folder `./gone`."),
        (critic("zoo:tiny", parallel="tensor"), "`critic` got `parallel='tensor'`"),
        (critic("zoo:tiny", optimizer=adamw(lr=-1.0)), "`adamw` got lr=-1.0."),
    ],
)  # fmt: skip
def test_models_that_cannot_be_what_they_should_are_refused_before_anything_starts(model: ModelSpec, said: str) -> None:
    group = WorkerGroup("other", model, pool=POOL)
    with Pipeline("p") as step:
        batch = prompts(data="zoo:larger", batch_size=2)
        rollout = generate(ACTOR, batch, max_new_tokens=2)
        if model.maker == "critic":
            report(values(group, rollout).rename(values="advantages"), reward_model_score(group, batch, rollout))
        else:
            report(batch, reward_model_score(group, batch, rollout))
    found = [problem for problem in problems_of(step) if said in problem.what]
    assert [problem.at for problem in found] == [model.at]


def test_a_head_of_several_numbers_is_refused_before_anything_starts(tmp_path: Path) -> None:
    folder = make_model(tmp_path, head="sequence", labels=2)
    for model in (reward_model(folder), critic(folder)):
        group = WorkerGroup("other", model, pool=POOL)
        with Pipeline("p") as step:
            batch = prompts(data="zoo:larger", batch_size=2)
            rollout = generate(ACTOR, batch, max_new_tokens=2)
            wanted = values(group, rollout) if model.maker == "critic" else reward_model_score(group, batch, rollout)
            report(batch, wanted)
        said = [problem.what for problem in problems_of(step)]
        assert f"the head of `{folder}` gives 2 numbers, not one." in said


def test_a_template_that_cannot_be_read_is_said_at_once() -> None:
    with pytest.raises(PipelineFileError, match=r"the chat template `gone\.jinja` cannot be read"):
        reward_model("zoo:tiny", chat_template="gone.jinja")


def test_the_plan_of_ppo(tmp_path: Path) -> None:
    """Values above the critic's update see its weights before it; nothing of the critic is synced or aliased."""
    plan, _ = compile_pipelines(load_ppo(tmp_path).pipelines, LOCAL)
    assert "  group critic: zoo:tiny, critic, bf16, trained, pool main" in plan_head(plan).splitlines()
    assert "  group actor: zoo:tiny, bf16, trained, pool main, rollout hf" in plan_head(plan).splitlines()
    runs = {op.call: op for op in plan.runs}
    assert (runs["values"].version, runs["update_critic"].version, runs["update_policy"].version) == (0, 0, 0)
    assert {"values", "gae_advantage"} <= set(runs["update_critic"].after)
    assert "update_critic" not in runs["update_policy"].after
    assert [op.id for op in plan.ops if op.kind == "sync"] == ["sync:actor@v+1"]
    assert list(plan.aliased) == ["old_logprob"]
    assert plan_from_dict(plan.to_dict()) == plan


def test_values_below_the_update_see_the_new_weights(tmp_path: Path) -> None:
    line = (
        "        update_critic(value_group, rollout, value, advantage, loss=value_clip(eps=cfg.value_clip), **sizes)\n"
    )
    after = f'{line}        report(reward, values(value_group, rollout, name="after").rename(values="advantages"))\n'
    edits = ((line, after), ("    verify,\n)", "    verify,\n)\n" + REPORT))
    plan, _ = compile_pipelines(load_ppo(tmp_path, *edits).pipelines, LOCAL)
    runs = {op.call: op for op in plan.runs}
    assert (runs["values"].version, runs["after"].version) == (0, 1)
    assert "update_critic" in runs["after"].after


REPORT = '''
from jaxtyping import Float32
from torch import Tensor
from dagrl import Metrics, node


@node()
def report(rewards: Float32[Tensor, " B"], advantages: Float32[Tensor, "B T"] | None = None) -> Metrics:
    """Reads what it is given."""
    return Metrics()
'''


@pytest.mark.parametrize(("workers", "parallel"), [(1, "none"), (2, "replicate")])
def test_a_critic_is_held_as_a_policy_is(tmp_path: Path, workers: int, parallel: str) -> None:
    plan, _ = compile_pipelines(load_ppo(tmp_path, workers=workers).pipelines, Machine("ray", (2,), 4))
    assert {group.name: group.parallel for group in plan.groups} == dict.fromkeys(("actor", "critic", "ref"), parallel)
    assert [group.role for group in plan.groups] == ["Policy", "Critic", "Policy"]
