"""Ops, what each waits for, weight versions, syncs and frees; also on random graphs."""

from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from dagrl import Pipeline
from dagrl.compiler import FreeOp, Plan, RunOp, SyncOp


def waits_for(plan: Plan, later: str, earlier: str) -> bool:
    """True when ``later`` starts after ``earlier`` by its dependencies, not by its place in the list."""
    after = {op.id: op.after for op in plan.ops}
    seen: set[str] = set()
    waiting = [later]
    while waiting:
        for name in after[waiting.pop()]:
            if name == earlier:
                return True
            if name not in seen:
                seen.add(name)
                waiting.append(name)
    return False


def two_updates(toy) -> Pipeline:
    with Pipeline("p") as p:
        actor, ref = toy.group("actor"), toy.group("ref")
        tokens = toy.draw(actor, batch := toy.source())
        toy.watch(toy.old(actor, tokens, name="above"))
        toy.watch(toy.old(ref, tokens, name="elsewhere"))
        toy.nudge(actor, tokens)
        toy.watch(toy.old(actor, tokens, name="middle"))
        toy.nudge(actor, tokens)
        toy.report(toy.judge(toy.draw(actor, batch, name="below")))
        toy.watch(toy.old(actor, tokens, name="last"))
    return p


def test_versions_follow_program_order(toy) -> None:
    plan = toy.plan_of(two_updates(toy))
    versions = {op.call: op.version for op in plan.runs if op.group}
    assert versions == {
        "draw": 0, "above": 0, "elsewhere": 0, "nudge": 0, "middle": 1, "nudge#2": 1, "below": 2, "last": 2,
    }  # fmt: skip
    assert toy.run_of(plan, "source").version is None
    assert toy.run_of(plan, "nudge").mutates
    assert not toy.run_of(plan, "above").mutates


def test_a_mutation_waits_for_every_earlier_call_of_its_group(toy) -> None:
    plan = toy.plan_of(two_updates(toy))
    assert {"draw", "above"} <= set(toy.run_of(plan, "nudge").after)
    assert "elsewhere" not in toy.run_of(plan, "nudge").after
    assert {"middle", "nudge"} <= set(toy.run_of(plan, "nudge#2").after)
    assert toy.run_of(plan, "middle").after == ("draw", "nudge", "source")


def test_a_mutation_waits_for_the_sync_that_reads_the_weights(toy) -> None:
    plan = toy.plan_of(two_updates(toy))
    assert "sync:actor@v+1" in toy.run_of(plan, "nudge#2").after


def test_a_rollout_below_an_update_waits_for_its_sync_and_a_scorer_only_for_the_update(toy) -> None:
    plan = toy.plan_of(two_updates(toy))
    assert "sync:actor@v+2" in toy.run_of(plan, "below").after
    assert not waits_for(plan, "last", "sync:actor@v+2")
    assert "nudge#2" in toy.run_of(plan, "last").after
    assert not waits_for(plan, "draw", "nudge")


def test_syncs_come_after_each_mutation_of_a_group_that_generates(toy) -> None:
    plan = toy.plan_of(two_updates(toy))
    syncs = [op for op in plan.ops if isinstance(op, SyncOp)]
    assert [(op.group, op.version, op.after) for op in syncs] == [("actor", 1, ("nudge",)), ("actor", 2, ("nudge#2",))]


def trained_but_silent(toy) -> Pipeline:
    with Pipeline("p") as p:
        toy.nudge(toy.group("actor"), toy.draw(toy.group("sampler"), toy.source()))
    return p


def test_a_group_that_never_generates_is_not_synced(toy) -> None:
    plan = toy.plan_of(trained_but_silent(toy))
    assert not any(isinstance(op, SyncOp) for op in plan.ops)


def test_a_group_that_generates_in_another_pipeline_is_synced(toy) -> None:
    with Pipeline("eval") as held_out:
        toy.report(toy.judge(toy.draw(toy.group("actor"), toy.source())))
    plan = toy.plan_of(trained_but_silent(toy), held_out)
    assert [op.id for op in plan.ops if isinstance(op, SyncOp)] == ["sync:actor@v+1"]


def test_independent_calls_do_not_wait_for_each_other(toy) -> None:
    plan = toy.plan_of(two_updates(toy))
    assert not waits_for(plan, "elsewhere", "above")
    assert not waits_for(plan, "watch#2", "watch")
    assert not waits_for(plan, "nudge", "elsewhere")


def test_frees_follow_all_live_readers_once(toy) -> None:
    with Pipeline("p") as p:
        tokens = toy.draw(toy.group("actor"), toy.source())
        rewards = toy.judge(tokens)
        toy.report(rewards, toy.center(rewards))
        toy.report(rewards, name="last")
    plan = toy.plan_of(p)
    frees = {column: op for op in plan.ops if isinstance(op, FreeOp) for column in op.columns}
    assert set(frees) == {"source.messages", "draw.tokens", "judge.rewards", "center.advantages"}
    assert frees["judge.rewards"].after == ("center", "report", "last")
    assert frees["center.advantages"].after == ("report",)
    order = toy.ids(plan)
    assert order.index(frees["judge.rewards"].id) == order.index("last") + 1
    assert order.index(frees["center.advantages"].id) == order.index("report") + 1


def test_a_renamed_column_is_freed_under_its_writers_name(toy) -> None:
    with Pipeline("p") as p:
        rewards = toy.judge(toy.draw(toy.group("actor"), toy.source()).rename(tokens="x").rename(x="tokens"))
        toy.report(rewards.rename(rewards="r").rename(r="rewards"))
    plan = toy.plan_of(p)
    assert "judge.rewards" in [column for op in plan.ops if isinstance(op, FreeOp) for column in op.columns]
    (read,) = toy.run_of(plan, "report").reads
    assert (read.column, read.type, read.call, read.source) == ("rewards", "f32[B]", "judge", "rewards")


def check_order(plan: Plan) -> None:
    """Ids are unique, every op stands below what it waits for, and weight versions count mutations."""
    place = {op.id: number for number, op in enumerate(plan.ops)}
    assert len(place) == len(plan.ops)
    versions: dict[str, int] = {}
    for op in plan.ops:
        assert all(place[name] < place[op.id] for name in op.after), f"{op.id} runs before what it waits for"
        if isinstance(op, SyncOp):
            assert op.version == versions[op.group]
        elif isinstance(op, RunOp) and op.group is not None:
            assert op.version == versions.setdefault(op.group, 0)
            versions[op.group] += op.mutates


def check_columns(plan: Plan) -> None:
    """Every reader waits for the writers and filters it needs; a written column is freed once, after its readers."""
    writes = {op.call: op.writes for op in plan.runs}
    frees = [(column, op) for op in plan.ops if isinstance(op, FreeOp) for column in op.columns]
    after_free = {column: op.after for column, op in frees}
    assert len(after_free) == len(frees)
    assert set(after_free) == {f"{call}.{column}" for call, columns in writes.items() for column in columns}
    for op in plan.runs:
        assert set(op.filters) <= set(op.after)
        for read in op.reads:
            assert read.call in op.after
            assert read.source in writes[read.call]
            assert op.id in after_free[f"{read.call}.{read.source}"]


def check_weights(plan: Plan) -> None:
    """A mutation waits for all earlier calls of its group; a rollout below it waits for the sync."""
    for number, second in enumerate(plan.runs):
        for first in plan.runs[:number]:
            if first.group is None or first.group != second.group:
                continue
            if second.mutates:
                assert waits_for(plan, second.id, first.id), f"{second.id} changes weights under {first.id}"
            if first.mutates and second.needs == "rollout":
                assert waits_for(plan, second.id, f"sync:{second.group}@v+{second.version}")


def check_invariants(plan: Plan) -> None:
    check_order(plan)
    check_columns(plan)
    check_weights(plan)


KINDS = ("draw", "judge", "keep", "old", "nudge", "report", "learn")


@settings(max_examples=60, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(st.lists(st.tuples(st.sampled_from(KINDS), st.integers(0, 9), st.integers(0, 9)), max_size=12))
def test_random_graphs_keep_the_invariants(toy, steps: list[tuple[str, int, int]]) -> None:
    groups = (toy.group("actor"), toy.group("second"))
    with Pipeline("p") as p:
        batch = toy.source()
        tokens, rewards, filters = [toy.draw(groups[0], batch)], [], []
        rewards.append(toy.judge(tokens[0]))
        for kind, first, second in steps:
            group, some_tokens = groups[first % 2], tokens[second % len(tokens)]
            extra = filters[-1:] if first % 3 == 0 else []
            match kind:
                case "draw":
                    tokens.append(toy.draw(group, batch, *extra))
                case "judge":
                    rewards.append(toy.judge(some_tokens, *extra))
                case "keep":
                    filters.append(toy.keep(rewards[second % len(rewards)], *extra))
                case "old":
                    toy.watch(toy.old(group, some_tokens, *extra))
                case "nudge":
                    toy.nudge(group, some_tokens, *extra)
                case "report":
                    toy.report(rewards[second % len(rewards)], *extra)
                case _:
                    advantages = toy.center(rewards[first % len(rewards)])
                    before = toy.old(group, some_tokens)
                    toy.learn(group, some_tokens, before, advantages, *extra, loss=toy.ratio())
        toy.report(rewards[0], *filters, *(edge.only() for edge in (*tokens, *rewards[1:])), name="end")
    plan = toy.plan_of(p)
    check_invariants(plan)
    assert plan == toy.plan_of(p)


def test_toys_and_the_shipped_pipeline_keep_the_invariants(toy) -> None:
    for pipeline in (two_updates(toy), toy.update(), toy.update(epochs=2), trained_but_silent(toy)):
        check_invariants(toy.plan_of(pipeline))


def test_ops_know_their_call(toy) -> None:
    plan = toy.plan_of(toy.update(mini_batch_size=4))
    op = toy.run_of(plan, "learn")
    assert isinstance(op, RunOp)
    assert (op.id, op.node, op.group, op.needs, op.source) == ("learn", "learn", "actor", "train", "source")
    assert op.options == {"loss": "ratio()", "mini_batch_size": "4", "epochs": "1"}
    assert op.at.startswith("conftest.py:")
    assert toy.run_of(plan, "draw").needs == "rollout"
    assert toy.run_of(plan, "source").options["data"] == "'toy'"
