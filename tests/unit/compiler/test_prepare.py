"""What the plan says of losses that prepare over a mini-batch or read a teacher, and what it refuses."""

import json

import pytest

from dagrl import LossTerms, Pipeline, ResourcePool, WorkerGroup, adamw, policy
from dagrl.cli.plan_text import plan_text
from dagrl.compiler import Plan, RunOp, compile_pipelines, plan_from_dict
from dagrl.errors import CompileError
from dagrl.nodes import (
    clip_cov,
    generate,
    grpo_advantage,
    kl_cov,
    old_logprob,
    ppo_clip,
    prompts,
    reverse_kl_distill,
    teacher_topk,
    topk_distill,
    update_policy,
    verify,
)


def pipeline(loss: LossTerms, *, taught: bool = True, trains: bool = False, temperature: float = 1.0, **teacher):
    pool = ResourcePool("main")
    actor = WorkerGroup("actor", policy("zoo:tiny", optimizer=adamw(lr=1e-4)), pool=pool)
    other = WorkerGroup("teacher", policy("zoo:tiny", optimizer=adamw(lr=1e-4) if trains else None), pool=pool)
    with Pipeline("p") as step:
        batch = prompts(data="zoo:larger", batch_size=4, n=4)
        rollout = generate(actor, batch, max_new_tokens=4, temperature=temperature)
        advantage = grpo_advantage(rollout, verify(batch, rollout))
        edges = [rollout, advantage, old_logprob(actor, rollout)]
        if taught:
            edges.append(teacher_topk(other, rollout, **teacher))
        update_policy(actor, *edges, loss=loss)
    return step


def planned(loss: LossTerms, **options) -> tuple[Plan, RunOp]:
    (plan,) = compile_pipelines([pipeline(loss, **options)])
    return plan, next(op for op in plan.runs if op.call == "update_policy")


def test_the_plan_shows_what_is_prepared_and_its_forward_pass() -> None:
    plan, update = planned(clip_cov() + 0.1 * topk_distill())
    assert update.prepares == ("clip_cov",)
    assert update.prepare_forward
    assert update.aliases == {"old_logprobs": "new_logprobs"}
    line = "       prepare clip_cov  over each mini-batch, after a forward pass without gradient; none where it is one"
    assert line in plan_text(plan)
    assert plan_from_dict(json.loads(plan.to_json())) == plan


def test_a_plan_of_an_earlier_version_is_read() -> None:
    plan, _ = planned(ppo_clip(), taught=False)
    data = json.loads(plan.to_json())
    for op in data["ops"]:
        op.pop("prepares", None)
        op.pop("prepare_forward", None)
    assert plan_from_dict(data) == plan


def test_without_such_a_loss_the_plan_says_nothing() -> None:
    for loss in (ppo_clip(), ppo_clip() + 0 * kl_cov()):
        plan, update = planned(loss, taught=False)
        assert update.prepares == ()
        assert "  prepare " not in plan_text(plan)


def test_only_what_a_live_term_reads_of_the_teacher_is_computed() -> None:
    def written(loss: LossTerms) -> list[tuple[str, ...]]:
        return [op.writes for op in planned(loss)[0].runs if op.call == "teacher_topk"]

    assert written(topk_distill()) == [("teacher_topk_ids", "teacher_topk_logprobs")]
    assert written(reverse_kl_distill()) == [("teacher_logprobs",)]
    assert written(ppo_clip() + 0 * topk_distill()) == []
    plan, _ = planned(ppo_clip() + 0 * topk_distill())
    assert plan.pruned["teacher_topk"] == (
        "only loss term `topk_distill` of `update_policy` would read it, with coefficient 0"
    )


def problems(loss: LossTerms, **options) -> str:
    with pytest.raises(CompileError) as raised:
        compile_pipelines([pipeline(loss, **options)])
    return str(raised.value)


def test_a_column_that_only_a_function_reads_is_missed() -> None:
    said = problems(topk_distill(), taught=False)
    assert "`update_policy` reads `teacher_topk_ids: i64[B T K]`, but no edge into it carries that column" in said
    assert "loss term `topk_distill()`" in said
    assert "`teacher_topk_ids` is written by `teacher_topk`" in said


@pytest.mark.parametrize(
    ("loss", "options", "said"),
    [
        (topk_distill(), {"trains": True}, "`teacher_topk`: its teacher is `teacher`, which trains"),
        (topk_distill(), {"k": 0}, "`teacher_topk`: `k` is 0"),
        (topk_distill(), {"micro_batch_size": -1}, "`teacher_topk`: `micro_batch_size` is -1"),
        (topk_distill(), {"temperature": 0.0}, "`teacher_topk`: `generate` has temperature=0"),
        (topk_distill(kind="both"), {}, "`topk_distill` got `kind='both'`"),
        (clip_cov(eps=0.0), {}, "loss `clip_cov`: `eps` is 0.0"),
        (clip_cov(eps=1.5), {}, "loss `clip_cov`: `eps` is 1.5"),
        (clip_cov(eps_high=-0.1), {}, "loss `clip_cov`: `eps_high` is -0.1"),
        (clip_cov(cov_low=5.0), {}, "`cov_low` is 5.0 and `cov_high` 5.0"),
        (clip_cov(clip_ratio=0.0), {}, "`clip_ratio` is 0.0"),
        (kl_cov(k_percent=1.1), {}, "`k_percent` is 1.1"),
        (kl_cov(ppo_kl_coef=0.0), {}, "`ppo_kl_coef` is 0.0"),
    ],
)
def test_refusals(loss: LossTerms, options: dict, said: str) -> None:
    assert said in problems(loss, **options)
