"""A plan as a graph: what frees columns is skipped, implied edges are left out, syncs are where they matter."""

from dataclasses import replace

from unit.tui.step_graphs import plan_of, run_op

from dagrl.compiler import FreeOp, SyncOp
from dagrl.compiler.plan import GroupPlan, PoolPlan
from dagrl.tui.step_graph import StepGraph, alias_notes, pool_headings


def test_implied_edges_are_left_out() -> None:
    graph = StepGraph.from_plan(
        plan_of(
            run_op("a"), run_op("b", ["a"]), run_op("c", ["a", "b"]), run_op("d", ["a", "b", "c"]), run_op("e", ["a"])
        )
    )
    assert graph.edges == (("a", "b"), ("b", "c"), ("c", "d"), ("a", "e"))
    assert graph.parents["d"] == ("c",)
    assert graph.children["a"] == ("b", "e")
    assert graph.numbered_edges == ((0, 1), (1, 2), (2, 3), (0, 4))


def test_what_frees_columns_is_skipped_through() -> None:
    free = FreeOp("free:a", ("a.x",), ("a",))
    graph = StepGraph.from_plan(plan_of(run_op("a"), free, run_op("b", ["free:a"])))
    assert [node.id for node in graph.nodes] == ["a", "b"]
    assert graph.edges == (("a", "b"),)


def test_a_sync_is_a_node_only_where_an_op_waits_for_it() -> None:
    update = run_op("update", group="actor", needs="train", version=0, mutates=True)
    sync = SyncOp("sync:actor@v+1", "main", "actor", 1, ("update",))
    free = FreeOp("free:update", ("update.x",), ("sync:actor@v+1",))
    last = StepGraph.from_plan(plan_of(update, sync, free))
    assert [(node.id, node.syncs) for node in last.nodes] == [("update", ("actor",))]
    between = StepGraph.from_plan(plan_of(update, sync, run_op("again", ["sync:actor@v+1"])))
    assert [(node.name, node.kind, node.syncs) for node in between.nodes] == [
        ("update", "run", ()),
        ("sync actor", "sync", ()),
        ("again", "run", ()),
    ]
    assert between.edges == (("update", "sync:actor@v+1"), ("sync:actor@v+1", "again"))


def test_headings_say_who_shares_a_pool() -> None:
    groups = [GroupPlan(name, "m", pool, False, "bf16") for name, pool in (("a", "main"), ("b", "main"), ("c", "side"))]
    plan = replace(plan_of(run_op("x"), groups=groups), pools=(PoolPlan("main", (4, 4)), PoolPlan("side", (1,))))
    assert pool_headings(StepGraph.from_plan(plan)) == [
        "main pool · 8 processes · a, b colocated",
        "side pool · 1 process · c",
    ]


def test_an_aliased_call_names_the_op_that_stands_in() -> None:
    update = run_op("update", aliases={"old": "new"})
    other = run_op("other", aliases={"old": "new"})
    plan = replace(
        plan_of(other, update), aliased={"old_logprob": "`old` is the detached `new` of `update`'s own pass"}
    )
    assert alias_notes(StepGraph.from_plan(plan)) == ["old_logprob = update's own forward (alias)"]
    unknown = replace(plan, aliased={"old_logprob": "said otherwise"})
    assert alias_notes(StepGraph.from_plan(unknown)) == ["old_logprob = another op's own forward (alias)"]


def test_graphs_of_equal_plans_are_equal() -> None:
    assert StepGraph.from_plan(plan_of(run_op("a"))) == StepGraph.from_plan(plan_of(run_op("a")))
    assert len({StepGraph.from_plan(plan_of(run_op("a"))), StepGraph.from_plan(plan_of(run_op("a")))}) == 1
