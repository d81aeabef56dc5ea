"""Refill blocks: one loop op with its own list, rows and liveness across its border, and what is refused."""

import json
from collections.abc import Callable

import pytest

from dagrl import Pipeline, refill
from dagrl.cli.plan_text import plan_text
from dagrl.compiler import FreeOp, LoopOp, Plan, RunOp, SyncOp, plan_from_dict
from dagrl.compiler.alias import alias
from dagrl.compiler.plan import opened
from dagrl.compiler.prune import prune
from dagrl.compiler.rows import RowSet, symbolic_rows
from dagrl.errors import PipelineFileError


def step_of(toy, *, groups: int = 12, more: Callable[..., None] | None = None, **options) -> Pipeline:
    """An RL step with a block; ``more`` adds calls to the end of the block."""
    actor = toy.group("actor")
    with Pipeline("p") as step:
        with refill(groups=groups, max_rounds=3):
            batch = toy.source()
            tokens = toy.draw(actor, batch)
            rewards = toy.judge(tokens)
            toy.keep(rewards)
            if more is not None:
                more(actor, batch, tokens, rewards)
        advantages = toy.center(rewards)
        toy.learn(actor, tokens, toy.old(actor, tokens), advantages, loss=toy.ratio(), **options)
    return step


def loop_of(plan: Plan) -> LoopOp:
    (loop,) = plan.loops
    return loop


def test_the_block_is_one_op_and_later_ops_wait_for_it(toy) -> None:
    plan = toy.plan_of(step_of(toy))
    assert [op.id for op in plan.ops if not isinstance(op, FreeOp)] == ["refill", "center", "learn", "sync:actor@v+1"]
    loop = loop_of(plan)
    assert (loop.source, loop.groups, loop.max_rounds, loop.filters) == ("source", 12, 3, ("keep",))
    assert [op.id for op in loop.ops] == ["source", "draw", "judge", "keep"]
    assert {op.id: op.after for op in loop.ops} == {
        "source": (), "draw": ("source",), "judge": ("draw", "source"), "keep": ("judge", "source"),
    }  # fmt: skip
    assert (loop.last, loop.after) == (("keep",), ())
    assert toy.run_of(plan, "center").after == ("refill",)
    assert toy.run_of(plan, "learn").after == ("center", "refill")
    assert [op.call for op in plan.runs] == ["source", "draw", "judge", "keep", "center", "learn"]


def test_outside_the_block_counts_as_the_one_filter_of_its_rows(toy) -> None:
    step = step_of(toy, more=lambda actor, batch, tokens, rewards: toy.keep(rewards, name="second"))
    rows = symbolic_rows(step)
    sources = frozenset({"source"})
    assert rows["second"].read == RowSet(sources, frozenset())
    assert rows["center"].read == rows["learn"].read == RowSet(sources, frozenset({"refill"}))
    plan = toy.plan_of(step)
    assert loop_of(plan).filters == ("keep", "second")
    assert toy.run_of(plan, "learn").filters == ("refill",)
    assert toy.run_of(plan, "second").filters == ()


def test_a_filter_inside_needs_no_reader_and_one_outside_does(toy) -> None:
    live = prune(step_of(toy), symbolic_rows(step_of(toy)))
    assert "keep" in [call.name for call in live.calls]
    assert "keep" not in live.pruned
    with Pipeline("p") as step:
        rewards = toy.judge(toy.draw(toy.group("actor"), toy.source()))
        toy.keep(rewards)
        toy.report(rewards)
    assert toy.problems_of(step) == ["nobody takes the output of `keep`, and it changes nothing by itself."]


def test_only_columns_that_later_calls_read_are_kept_and_freed_after_them(toy) -> None:
    def second_reader(actor, batch, tokens, rewards) -> None:
        toy.keep(toy.center(rewards, name="inside").rename(advantages="rewards"), name="other")

    plan = toy.plan_of(step_of(toy, more=second_reader))
    assert loop_of(plan).keeps == ("draw.tokens", "judge.rewards")
    freed = {column: op.after for op in plan.ops if isinstance(op, FreeOp) for column in op.columns}
    assert freed == {"judge.rewards": ("center",), "draw.tokens": ("learn",), "center.advantages": ("learn",)}


def test_what_nobody_reads_is_pruned_inside_too(toy) -> None:
    def unread(actor, batch, tokens, rewards) -> None:
        extra = toy.center(toy.judge(tokens, name="extra"), name="spare")
        toy.report(rewards, extra.only())

    plan = toy.plan_of(step_of(toy, more=unread))
    assert set(plan.pruned) == {"extra", "spare"}
    assert "report" in [op.id for op in loop_of(plan).ops]


def test_old_logprobs_outside_are_the_updates_own_and_inside_they_are_not(toy) -> None:
    assert "old" in toy.plan_of(step_of(toy)).aliased
    actor = toy.group("actor")
    with Pipeline("p") as step:
        with refill(groups=4):
            tokens = toy.draw(actor, toy.source())
            rewards = toy.judge(tokens)
            before = toy.old(actor, tokens)
            toy.keep(rewards)
        toy.learn(actor, tokens, before, toy.center(rewards), loss=toy.ratio())
    plan = toy.plan_of(step)
    assert plan.kept == {"old": "`learn` sees other rows"}
    assert "old.old_logprobs" in loop_of(plan).keeps


@pytest.mark.parametrize(("size", "aliased"), [(23, False), (24, True), (16, False), (0, True)])
def test_mini_batches_are_of_the_groups_that_the_block_keeps(toy, size: int, aliased: bool) -> None:
    """Twelve groups of two rows, from rounds of eight prompts."""
    step = step_of(toy, mini_batch_size=size)
    rows = symbolic_rows(step)
    _, found = alias(step, rows, prune(step, rows))
    assert ("old" in found.aliased) == aliased
    if not aliased:
        assert found.kept["old"] == f"`learn` takes 24 rows in mini-batches of {size}"


def test_a_block_below_an_update_waits_for_its_weights_and_is_waited_for(toy) -> None:
    actor = toy.group("actor")
    with Pipeline("p") as step:
        tokens = toy.draw(actor, toy.source())
        toy.nudge(actor, tokens)
        with refill(groups=4):
            fresh = toy.draw(actor, toy.source(name="second"), name="fresh")
            toy.keep(toy.judge(fresh))
        toy.nudge(actor, fresh, name="again")
    plan = toy.plan_of(step)
    loop = loop_of(plan)
    assert loop.after == ("sync:actor@v+1",)
    assert toy.run_of(plan, "fresh").version == 1
    assert set(toy.run_of(plan, "again").after) == {"refill", "nudge", "sync:actor@v+1"}
    place = {op.id: number for number, op in enumerate(plan.ops)}
    assert place["sync:actor@v+1"] < place["refill"] < place["again"]


def test_opened_ops_wait_for_what_their_loop_waits_for_and_it_for_them(toy) -> None:
    loop = LoopOp("l", "a", 1, 2, ("b",), (), toy.plan_of(step_of(toy)).loops[0].ops[:2], ("before",), "f.py:1")
    first, second, last = opened([loop])
    assert isinstance(first, RunOp)
    assert (first.after, second.after, last.after) == (("before",), ("source", "before"), ("draw",))


def test_two_blocks_are_two_loops(toy) -> None:
    actor = toy.group("actor")
    with Pipeline("p") as step:
        for _ in range(2):
            with refill(groups=4):
                rewards = toy.judge(toy.draw(actor, toy.source()))
                toy.keep(rewards)
            toy.report(rewards)
    plan = toy.plan_of(step)
    assert [(loop.id, loop.source) for loop in plan.loops] == [("refill", "source"), ("refill#2", "source#2")]
    assert toy.run_of(plan, "report#2").filters == ("refill#2",)


def test_json_and_text_have_the_loop(toy) -> None:
    plan = toy.plan_of(step_of(toy))
    assert plan_from_dict(json.loads(plan.to_json())) == plan
    text = plan_text(plan).splitlines()
    head = next(number for number, line in enumerate(text) if "refill:" in line)
    assert text[head].startswith("     refill: rounds until 12 groups pass keep, at most 3 rounds  (test_loops.py:")
    assert text[head + 1].startswith("    1  source")
    assert "     end of refill, the 12 lowest groups that passed" in text
    assert "       keeps   draw.tokens, judge.rewards" in text
    assert any(line.startswith("  5  center") for line in text)


def test_a_sync_stays_outside(toy) -> None:
    assert [op.id for op in toy.plan_of(step_of(toy)).ops if isinstance(op, SyncOp)] == ["sync:actor@v+1"]


def bad_block(toy, kind: str) -> Pipeline:
    """A step with one fault."""
    actor = toy.group("actor")
    with Pipeline("p") as step:
        before = toy.judge(toy.draw(actor, toy.source(name="first")), name="outer")
        with refill(groups=25 if kind == "unfillable" else 4, max_rounds=3):
            if kind != "sourceless":
                tokens = toy.draw(actor, toy.source())
                rewards = toy.judge(tokens)
                if kind != "unfiltered":
                    toy.keep(rewards)
                if kind == "second source":
                    toy.keep(toy.judge(toy.draw(actor, toy.source())))
                if kind == "mutating":
                    toy.nudge(actor, tokens)
                if kind == "outer edge":
                    toy.keep(before, name="outer_keep")
        if kind in ("sourceless", "unread"):
            toy.report(before)
        else:
            toy.report(rewards)
        if kind != "unread":
            toy.report(before)
    return step


@pytest.mark.parametrize(
    ("kind", "problem"),
    [
        ("second source", "`source#2` is a second source in the block of `refill`; the first is at "),
        ("sourceless", "`refill` has no `prompts` in its block: its rounds would have no rows."),
        ("unfiltered", "`refill` has no filter in its block: every group would pass in the first round."),
        ("mutating", "`nudge` changes a model inside `refill`, whose rounds are of one model."),
        ("outer edge", "`outer_keep` inside `refill` takes an edge of `outer`, which is not in the block."),
        ("unread", "no call below the block of `refill` takes an edge out of it, so what it draws is for nothing."),
        ("unfillable", "`refill` wants 25 groups, and 3 rounds of 8 prompts have 24."),
    ],
)
def test_what_a_block_is_refused_for(toy, kind: str, problem: str) -> None:
    assert any(what.startswith(problem) for what in toy.problems_of(bad_block(toy, kind)))


def test_a_sound_block_has_none_of_these_problems(toy) -> None:
    assert loop_of(toy.plan_of(bad_block(toy, "none"))).groups == 4


def test_a_block_inside_another_is_a_problem_at_its_line(toy) -> None:
    with Pipeline("p") as step, refill(groups=4), refill(groups=2):
        rewards = toy.judge(toy.draw(toy.group("actor"), toy.source()))
        toy.keep(rewards)
    (what, *_) = [what for what in toy.problems_of(step) if "stands inside" in what]
    assert what.startswith("`refill` stands inside the `refill` at ")
    assert "test_loops.py:" in what
    assert all(call.loop == "refill" for call in step.calls)


@pytest.mark.parametrize(
    ("options", "shown"), [({"groups": 0}, "groups=0"), ({"groups": 4, "max_rounds": True}, "max_rounds=True")]
)
def test_numbers_that_are_none(toy, options, shown: str) -> None:
    with Pipeline("p") as step:
        with refill(**options):
            rewards = toy.judge(toy.draw(toy.group("actor"), toy.source()))
            toy.keep(rewards)
        toy.report(rewards)
    assert toy.problems_of(step) == [f"`refill` got {shown}."]


def test_a_block_in_an_evaluation_is_refused(toy) -> None:
    with Pipeline("eval") as held_out:
        with refill(groups=4):
            rewards = toy.judge(toy.draw(toy.group("actor"), toy.source()))
            toy.keep(rewards)
        toy.report(rewards)
    assert toy.problems_of(step_of(toy), held_out) == [
        "`refill` stands in pipeline `eval`, which evaluates: it walks its data just once."
    ]


def test_a_block_outside_a_pipeline_is_an_error_at_its_line() -> None:
    with pytest.raises(PipelineFileError, match=r"(?s)`refill` stands outside a pipeline\..*test_loops.py:\d+"):
        refill(groups=4)


def test_a_call_cannot_have_the_name_of_a_block(toy) -> None:
    with Pipeline("p") as step:
        with refill(groups=4):
            rewards = toy.judge(toy.draw(toy.group("actor"), toy.source()))
            toy.keep(rewards)
        toy.report(rewards, name="refill")
    (what,) = toy.problems_of(step)
    assert what.startswith("a call is named as the `refill` block at ")


def test_a_block_that_raises_is_over(toy) -> None:
    with Pipeline("p") as step:
        with pytest.raises(KeyError), refill(groups=4):
            raise KeyError("user")
        toy.report(toy.judge(toy.draw(toy.group("actor"), toy.source())))
    assert all(call.loop is None for call in step.calls)
