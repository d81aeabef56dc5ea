"""Groups that generate from the weights of another: versions, syncs, and what is refused."""

import pytest

from dagrl import Pipeline, ResourcePool, WorkerGroup, adamw, critic, policy
from dagrl.cli.plan_text import plan_text
from dagrl.compiler import Machine, RunOp, SyncOp, compile_pipelines
from dagrl.errors import PipelineFileError

FAR = ResourcePool("far", process_on_nodes=[1])
TWO = Machine("ray", (1,), 2)


def follower(leader: WorkerGroup, model: str = "zoo:tiny", **options) -> WorkerGroup:
    return WorkerGroup("sampler", policy(model, **options), pool=FAR, follows=leader)


def step_of(toy, trainer: WorkerGroup, sampler: WorkerGroup) -> Pipeline:
    with Pipeline("p") as p:
        tokens = toy.draw(sampler, batch := toy.source())
        toy.nudge(trainer, tokens)
        toy.report(toy.judge(toy.draw(sampler, batch, name="below")))
    return p


def test_a_follower_reads_the_version_that_program_order_gives(toy) -> None:
    trainer = toy.group("trainer")
    (plan,) = compile_pipelines([step_of(toy, trainer, follower(trainer))], TWO)
    runs = {op.call: op for op in plan.ops if isinstance(op, RunOp)}
    assert (runs["draw"].version, runs["nudge"].version, runs["below"].version) == (0, 0, 1)
    (sync,) = [op for op in plan.ops if isinstance(op, SyncOp)]
    assert (sync.id, sync.group, sync.source, sync.pool, sync.source_pool) == (
        "sync:sampler@v+1", "sampler", "trainer", "far", "main",
    )  # fmt: skip
    assert set(sync.after) == {"nudge", "draw"}
    assert sync.id in runs["below"].after
    assert "sync sampler from trainer: rollout weights become v+1" in plan_text(plan)
    assert "follows trainer" in plan_text(plan)


def test_an_update_waits_for_no_rollout_of_a_follower_but_for_the_sync_before_it(toy) -> None:
    trainer = toy.group("trainer")
    sampler = follower(trainer)
    with Pipeline("p") as p:
        tokens = toy.draw(sampler, batch := toy.source())
        toy.nudge(trainer, tokens)
        toy.report(toy.judge(toy.draw(sampler, batch, name="other")))
        toy.nudge(trainer, tokens)
    (plan,) = compile_pipelines([p], TWO)
    after = {op.id: op.after for op in plan.ops}
    assert "other" not in after["nudge#2"]
    assert "sync:sampler@v+1" in after["nudge#2"]
    assert {"other", "nudge#2", "sync:sampler@v+1"} == set(after["sync:sampler@v+2"])


def test_both_are_synced_where_both_generate(toy) -> None:
    trainer = toy.group("trainer")
    with Pipeline("p") as p:
        tokens = toy.draw(trainer, batch := toy.source())
        toy.report(toy.judge(toy.draw(follower(trainer), batch, name="far")))
        toy.nudge(trainer, tokens)
    (plan,) = compile_pipelines([p], TWO)
    assert [(op.group, op.source) for op in plan.ops if isinstance(op, SyncOp)] == [
        ("sampler", "trainer"), ("trainer", "trainer"),
    ]  # fmt: skip


def test_a_follower_shares_nothing_out(toy) -> None:
    trainer = toy.group("trainer")
    (plan,) = compile_pipelines([step_of(toy, trainer, follower(trainer, parallel="fsdp"))], Machine("ray", (2,), 4))
    assert {group.name: group.parallel for group in plan.groups}["sampler"] == "none"
    spread = WorkerGroup("sampler", policy("zoo:tiny", parallel="fsdp"), pool=ResourcePool("far", [2]), follows=trainer)
    (plan,) = compile_pipelines([step_of(toy, trainer, spread)], Machine("ray", (2,), 4))
    assert {group.name: group.parallel for group in plan.groups}["sampler"] == "replicate"


REFUSED = {
    "frozen": (lambda toy: toy.group("t", trains=False), {}, "follows `t`, which is frozen"),
    "chain": (lambda toy: follower(toy.group("first")), {}, "which itself follows `first`"),
    "optimizer": (lambda toy: toy.group("t"), {"optimizer": adamw(lr=0.1)}, "has an optimizer of its own"),
    "model": (lambda toy: toy.group("t"), {"model": "zoo:expert"}, "but holds another model"),
    "scratch": (lambda toy: toy.group("t"), {"from_scratch": True}, "but holds another model"),
    "critic": (
        lambda toy: WorkerGroup("t", critic("zoo:tiny", optimizer=adamw(lr=0.1)), pool=toy.POOL), {},
        "but not both are policies",
    ),
}  # fmt: skip


@pytest.mark.parametrize("name", REFUSED)
def test_what_cannot_be_followed_is_refused(toy, name: str) -> None:
    leader, options, what = REFUSED[name]
    with Pipeline("p") as p:
        tokens = toy.draw(follower(leader(toy), **options), toy.source())
        toy.nudge(toy.group("other"), tokens)
    assert any(what in problem for problem in toy.problems_of(p, machine=Machine("ray", (1,), 3)))


def test_a_follower_neither_trains_nor_scores(toy) -> None:
    trainer = toy.group("trainer")
    sampler = follower(trainer)
    with Pipeline("p") as p:
        tokens = toy.draw(sampler, toy.source())
        toy.watch(toy.old(sampler, tokens))
        toy.nudge(sampler, tokens)
    problems = toy.problems_of(p, machine=TWO)
    assert (
        "`old` reads the training weights of `sampler`, which has none: it generates from those of `trainer`."
        in problems
    )
    assert "`nudge` trains `sampler`, which has none: it generates from those of `trainer`." in problems


def test_a_name_is_no_group_to_follow() -> None:
    with pytest.raises(PipelineFileError, match="pass the worker group that trains, not its name"):
        WorkerGroup("sampler", policy("zoo:tiny"), pool=FAR, follows="actor")  # pyright: ignore[reportArgumentType]
