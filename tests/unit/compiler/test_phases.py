"""When a rollout engine that shares its processes with training sleeps and wakes, and in which order ops then run."""

import json

import pytest

from dagrl import Pipeline, ResourcePool, WorkerGroup, adamw, policy
from dagrl.cli.plan_text import plan_text
from dagrl.compiler import LOCAL, Machine, PhaseOp, Plan, RunOp, SyncOp, compile_pipelines, plan_from_dict
from dagrl.errors import CompileError

POOL = ResourcePool("main")


def actor(engine: str = "vllm", pool: ResourcePool = POOL, name: str = "actor") -> WorkerGroup:
    return WorkerGroup(name, policy("zoo:tiny", optimizer=adamw(lr=0.1), rollout=engine), pool=pool)


def steps_of(plan: Plan) -> list[str]:
    """The ops that concern a model, in order: phases by action and group, calls and syncs by name."""
    shown = [op for op in plan.ops if isinstance(op, PhaseOp | SyncOp) or (isinstance(op, RunOp) and op.group)]
    return [f"{op.action} {op.group}" if isinstance(op, PhaseOp) else op.id for op in shown]


def grpo(toy, group: WorkerGroup, ref: WorkerGroup) -> Pipeline:
    with Pipeline("p") as p:
        tokens = toy.draw(group, toy.source())
        toy.watch(toy.old(ref, tokens, name="ref"))
        toy.nudge(group, tokens)
    return p


def test_a_step_sleeps_once_and_wakes_the_cache_only_to_generate(toy) -> None:
    plan = toy.plan_of(grpo(toy, actor(), toy.group("ref", trains=False)))
    assert steps_of(plan) == [
        "wake_weights actor", "wake_kv actor", "draw", "sleep actor", "ref", "nudge", "wake_weights actor",
        "sync:actor@v+1",
    ]  # fmt: skip


def test_hf_has_no_phases(toy) -> None:
    plan = toy.plan_of(grpo(toy, actor("hf"), toy.group("ref", trains=False)))
    assert steps_of(plan) == ["draw", "ref", "nudge", "sync:actor@v+1"]


def test_an_engine_that_has_its_processes_alone_never_sleeps(toy) -> None:
    trainer = toy.group("trainer")
    far = ResourcePool("far", process_on_nodes=[1])
    sampler = WorkerGroup("sampler", policy("zoo:tiny", rollout="vllm"), pool=far, follows=trainer)
    with Pipeline("p") as p:
        tokens = toy.draw(sampler, toy.source())
        toy.nudge(trainer, tokens)
    (plan,) = compile_pipelines([p], LOCAL)
    assert steps_of(plan) == ["draw", "nudge", "sync:sampler@v+1"]


def test_an_evaluation_wakes_what_the_step_has_put_to_sleep(toy) -> None:
    group = actor()
    with Pipeline("eval") as held_out:
        toy.report(toy.judge(toy.draw(group, toy.source())))
    plans = compile_pipelines([grpo(toy, group, toy.group("ref", trains=False)), held_out], LOCAL)
    assert steps_of(plans[1]) == ["wake_weights actor", "wake_kv actor", "draw"]


def remax(toy, group: WorkerGroup) -> Pipeline:
    """Scores between two rollouts in the file, which need not be between them when they run."""
    with Pipeline("p") as p:
        tokens = toy.draw(group, batch := toy.source())
        toy.watch(toy.old(group, tokens))
        greedy = toy.draw(group, batch, name="greedy")
        toy.report(toy.judge(greedy))
        toy.nudge(group, tokens)
    return p


def test_rollouts_run_one_after_the_other_where_data_allows(toy) -> None:
    assert steps_of(toy.plan_of(remax(toy, actor()))) == [
        "wake_weights actor", "wake_kv actor", "draw", "greedy", "sleep actor", "old", "nudge", "wake_weights actor",
        "sync:actor@v+1",
    ]  # fmt: skip


def two_updates(toy, group: WorkerGroup) -> Pipeline:
    with Pipeline("p") as p:
        tokens = toy.draw(group, batch := toy.source())
        toy.nudge(group, tokens)
        more = toy.draw(group, batch, name="again")
        toy.nudge(group, more)
    return p


def test_new_weights_arrive_before_the_cache_is_there(toy) -> None:
    assert steps_of(toy.plan_of(two_updates(toy, actor()))) == [
        "wake_weights actor", "wake_kv actor", "draw", "sleep actor", "nudge",
        "wake_weights actor", "sync:actor@v+1", "wake_kv actor", "again", "sleep actor", "nudge#2",
        "wake_weights actor", "sync:actor@v+2",
    ]  # fmt: skip


def test_weights_that_a_sync_replaces_are_dropped_and_others_kept(toy) -> None:
    group = actor()
    with Pipeline("p") as p:
        tokens = toy.draw(group, batch := toy.source())
        scored = toy.old(group, tokens)
        toy.watch(scored)
        again = toy.draw(group, batch, scored.only(), name="again")
        toy.nudge(group, again)
    levels = [op.level for op in toy.plan_of(p).ops if isinstance(op, PhaseOp) and op.action == "sleep"]
    assert levels[-1] == 2
    frozen = WorkerGroup("frozen", policy("zoo:tiny", rollout="vllm"), pool=POOL)
    with Pipeline("q") as q:
        toy.nudge(toy.group("other"), toy.draw(frozen, toy.source()))
    assert [op.level for op in toy.plan_of(q).ops if isinstance(op, PhaseOp) and op.action == "sleep"] == [1]


def test_two_engines_of_one_pool_are_not_awake_together(toy) -> None:
    first, second = actor(name="first"), actor(name="second")
    with Pipeline("p") as p:
        tokens = toy.draw(first, batch := toy.source())
        other = toy.draw(second, batch, name="other")
        toy.nudge(first, tokens)
        toy.nudge(second, other)
    awake: set[str] = set()
    for op in toy.plan_of(p).ops:
        if isinstance(op, PhaseOp):
            awake = (
                awake - {op.group}
                if op.action == "sleep"
                else awake | ({op.group} if op.action == "wake_kv" else set())
            )
            assert len(awake) <= 1
        elif isinstance(op, RunOp) and op.group is not None:
            assert awake == ({op.group} if op.needs == "rollout" else set())


@pytest.mark.parametrize("make", [remax, two_updates])
def test_switches_hold_by_dependencies_and_not_by_luck(toy, make) -> None:
    """Whatever an executor starts as soon as it may, no call runs in a phase that is not its own."""
    plan = toy.plan_of(make(toy, actor()))
    before: dict[str, set[str]] = {}
    for op in plan.ops:
        assert set(op.after) <= set(before), f"{op.id} stands above what it waits for"
        before[op.id] = set(op.after).union(*(before[name] for name in op.after))
    users = [op for op in plan.ops if isinstance(op, PhaseOp | SyncOp) or (isinstance(op, RunOp) and op.group)]
    for place, op in enumerate(users):
        if isinstance(op, PhaseOp):
            assert all(other.id in before[op.id] for other in users[:place])
            assert all(op.id in before[other.id] for other in users[place + 1 :])


def test_phases_survive_json_and_are_printed(toy) -> None:
    plan = toy.plan_of(grpo(toy, actor(), toy.group("ref", trains=False)))
    assert plan_from_dict(json.loads(plan.to_json())) == plan
    text = plan_text(plan)
    assert "phase   wake the weights of actor" in text
    assert "phase   wake the KV cache of actor" in text
    assert "phase   sleep: the rollout engine of actor, its weights are dropped" in text


def test_colocated_pools_of_many_processes_have_them_too(toy) -> None:
    plans = compile_pipelines([grpo(toy, actor(), toy.group("ref", trains=False))], Machine("ray", (2,), 2))
    assert sum(isinstance(op, PhaseOp) for op in plans[0].ops) == 4


def offloaded(name: str, engine: str = "vllm", *, trains: bool = True, precision: str = "fp32") -> WorkerGroup:
    optimizer = adamw(lr=0.1) if trains else None
    spec = policy("zoo:tiny", optimizer=optimizer, rollout=engine, precision=precision, offload=True)
    return WorkerGroup(name, spec, pool=POOL)


def test_what_is_offloaded_is_there_for_its_own_calls_alone(toy) -> None:
    plan = toy.plan_of(grpo(toy, offloaded("actor"), offloaded("ref", trains=False)))
    assert steps_of(plan) == [
        "offload_optimizer actor", "offload_model actor", "offload_model ref", "wake_weights actor",
        "wake_kv actor", "draw", "sleep actor", "onload_model ref", "ref",
        "offload_model ref", "onload_model actor", "onload_optimizer actor", "nudge",
        "offload_optimizer actor", "wake_weights actor", "sync:actor@v+1",
    ]  # fmt: skip


def test_the_optimizer_may_stay_while_its_group_scores(toy) -> None:
    group = offloaded("actor")
    with Pipeline("p") as p:
        tokens = toy.draw(group, toy.source())
        toy.watch(toy.old(group, tokens))
        toy.nudge(group, tokens)
    shown = steps_of(toy.plan_of(p))
    assert shown[shown.index("sleep actor") :] == [
        "sleep actor", "onload_model actor", "old", "onload_optimizer actor", "nudge",
        "offload_optimizer actor", "wake_weights actor", "sync:actor@v+1",
    ]  # fmt: skip


def test_the_optimizer_does_not_leave_for_a_score_between_updates(toy) -> None:
    group, frozen = offloaded("trainer"), WorkerGroup("frozen", policy("zoo:tiny", rollout="vllm"), pool=POOL)
    with Pipeline("p") as p:
        tokens = toy.draw(frozen, toy.source())
        toy.nudge(group, tokens)
        toy.watch(toy.old(group, tokens))
        toy.nudge(group, tokens)
    shown = steps_of(toy.plan_of(p))
    assert shown[shown.index("onload_optimizer trainer") + 1 :] == ["nudge", "old", "nudge#2"]


def test_hf_in_bf16_generates_from_a_copy(toy) -> None:
    plan = toy.plan_of(grpo(toy, offloaded("actor", "hf", precision="bf16"), toy.group("ref", trains=False)))
    assert steps_of(plan)[:4] == ["offload_optimizer actor", "offload_model actor", "draw", "ref"]


def test_hf_generates_from_trained_weights_so_these_stay(toy) -> None:
    plan = toy.plan_of(grpo(toy, offloaded("actor", "hf"), toy.group("ref", trains=False)))
    assert steps_of(plan) == [
        "offload_optimizer actor", "onload_model actor", "draw", "offload_model actor", "ref",
        "onload_model actor", "onload_optimizer actor", "nudge", "offload_optimizer actor", "sync:actor@v+1",
    ]  # fmt: skip


def test_a_group_that_has_its_pool_alone_comes_once(toy) -> None:
    far = WorkerGroup("ref", policy("zoo:tiny", offload=True), pool=ResourcePool("far", process_on_nodes=[1]))
    main = ResourcePool("main", process_on_nodes=[1])
    plan = compile_pipelines([grpo(toy, actor("hf", main), far)], Machine("ray", (2,), 2))[0]
    assert [op.id for op in plan.ops if isinstance(op, PhaseOp)] == ["onload_model:ref:ref"]


def test_weights_are_there_when_a_follower_takes_them(toy) -> None:
    trainer = offloaded("trainer", "hf")
    sampler = WorkerGroup("sampler", policy("zoo:tiny", rollout="vllm"), pool=POOL, follows=trainer)
    with Pipeline("p") as p:
        tokens = toy.draw(sampler, toy.source())
        toy.nudge(trainer, tokens)
    assert steps_of(toy.plan_of(p)) == [
        "offload_optimizer trainer", "offload_model trainer", "wake_weights sampler", "wake_kv sampler", "draw",
        "sleep sampler", "onload_model trainer", "onload_optimizer trainer", "nudge",
        "offload_optimizer trainer", "wake_weights sampler", "sync:sampler@v+1",
    ]  # fmt: skip


@pytest.mark.parametrize("make", [remax, two_updates])
@pytest.mark.parametrize("engine", ["hf", "vllm"])
def test_whatever_an_op_computes_with_is_there(toy, make, engine: str) -> None:
    """Followed by dependencies alone, no call meets a part of its own that is away, nor another's that is there."""
    plan = toy.plan_of(make(toy, offloaded("actor", engine)))
    here: dict[str, bool] = {}
    brings = {"onload_model": "model", "onload_optimizer": "optimizer", "wake_weights": "weights", "wake_kv": "kv"}
    for op in plan.ops:
        if isinstance(op, PhaseOp) and op.action in brings:
            here[brings[op.action]] = True
        elif isinstance(op, PhaseOp):
            gone = ["weights", "kv"] if op.action == "sleep" else [op.action.removeprefix("offload_")]
            here |= dict.fromkeys(gone, False)
        elif isinstance(op, RunOp) and op.group and op.needs == "rollout":
            assert not here["optimizer"]
            assert here["kv"] and not here["model"] if engine == "vllm" else here["model"]
        elif isinstance(op, RunOp) and op.group:
            assert here["model"]
            assert not here.get("weights", False)
            assert here["optimizer"] or not op.mutates
        elif isinstance(op, SyncOp):
            assert here["model"]
            assert not here["optimizer"]


def test_offloading_is_printed(toy) -> None:
    text = plan_text(toy.plan_of(grpo(toy, offloaded("actor"), toy.group("ref", trains=False))))
    assert "phase   offload: the trained weights of actor" in text
    assert "phase   onload: the optimizer state of actor" in text


def two_engines(toy, second: WorkerGroup) -> Pipeline:
    with Pipeline("p") as p:
        tokens = toy.draw(first := actor(name="first"), batch := toy.source())
        toy.nudge(first, tokens)
        toy.nudge(second, toy.draw(second, batch, name="other"))
    return p


def test_gpus_hold_one_engine_of_vllm_in_each_process(toy) -> None:
    gpus = Machine("ray", (2,), 2, gpus=True)
    with pytest.raises(CompileError, match="`first` and `second` both generate by vllm on pool `main`"):
        compile_pipelines([two_engines(toy, actor(name="second"))], gpus)
    one, two = ResourcePool("main", [1]), ResourcePool("apart", [1])
    compile_pipelines([two_engines(toy, actor("hf", name="second"))], gpus)
    with Pipeline("q") as q:
        for name, pool in (("first", one), ("second", two)):
            group = actor(name=name, pool=pool)
            toy.nudge(group, toy.draw(group, toy.source(), name=f"draw_{name}"))
    (plan,) = compile_pipelines([q], gpus)
    assert plan_from_dict(json.loads(plan.to_json())).machine == gpus
