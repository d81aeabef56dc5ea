"""A plan as text, line by line."""

from dagrl.cli.plan_text import plan_text
from dagrl.compiler import LOCAL, FreeOp, Input, Machine, Plan, RunOp, SyncOp
from dagrl.compiler.plan import GroupPlan, PoolPlan


def run(call: str, **changes) -> RunOp:
    values = {
        "id": call, "call": call, "node": call, "pool": "main", "group": None, "needs": None,
        "version": None, "mutates": False,
        "source": "prompts", "filters": (), "reads": (), "writes": (), "aliases": {}, "options": {}, "after": (),
        "at": "file.py:3",
    }  # fmt: skip
    return RunOp(**{**values, **changes})


def lines(*ops, machine: Machine = LOCAL, pools=(), groups=(), pruned=None, aliased=None, kept=None) -> list[str]:
    plan = Plan("p", machine, tuple(pools), tuple(groups), ops, pruned or {}, aliased or {}, kept or {})
    return plan_text(plan).split("\n")


def test_head() -> None:
    groups = [GroupPlan("actor", "zoo:tiny", "main", True, "bf16"), GroupPlan("ref", "m", "side", False, "fp32")]
    assert lines(groups=groups)[:3] == [
        "pipeline p on the local executor, 1 process",
        "  group actor: zoo:tiny, bf16, trained, pool main",
        "  group ref: m, fp32, frozen, pool side",
    ]
    pools = [PoolPlan("main", (4, 4)), PoolPlan("side", (1,))]
    assert lines(machine=Machine("big", (4, 4), 16), pools=pools)[0] == "pipeline p on the big executor, 9 processes"


def test_a_run_with_everything() -> None:
    op = run(
        "second", node="generate", group="actor", needs="train", version=1, mutates=True, filters=("keep", "long"),
        reads=(Input("a", "f32[B]", "x", "a"), Input("c", "f32[B]", "y", "b"), Input("d", "f32[B]", "x", "d")),
        writes=("e", "f"), aliases={"old": "new"}, options={"k": "1", "l": "'x'"},
    )  # fmt: skip
    assert lines(op)[2:] == [
        "  1  second = generate  on actor, train weights v+1 -> v+2  (file.py:3)",
        "       reads   a, d  from x",
        "       reads   b as c  from y",
        "       alias   old = its own new, detached",
        "       rows    of prompts that pass keep, long",
        "       writes  e, f",
        "       options k=1, l='x'",
    ]


def test_numbers_count_runs_and_syncs_but_no_frees() -> None:
    free = FreeOp("free:a", ("a.x", "b.y"), ("a",))
    shown = lines(
        run("a"), free, SyncOp("s", "main", "actor", 1, ("a",)), run("b", group="actor", needs="rollout", version=0)
    )
    assert shown[2:] == [
        "  1  a  (file.py:3)",
        "       free    a.x, b.y",
        "  2  sync actor: rollout weights become v+1",
        "  3  b  on actor, rollout weights v  (file.py:3)",
    ]


def test_decisions_come_last_with_reasons() -> None:
    shown = lines(run("a"), pruned={"b": "why b"}, aliased={"c": "why c"}, kept={"d": "why d"})
    assert shown[-4:] == ["", "  pruned b: why b", "  aliased c: why c", "  kept d: why d"]
    assert lines(run("a"))[-1] == "  1  a  (file.py:3)"
