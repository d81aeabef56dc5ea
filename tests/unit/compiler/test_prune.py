"""Only what a root needs runs, optional columns only when read, and pruning never changes rows."""

from typing import NamedTuple

from jaxtyping import Float32
from torch import Tensor

from dagrl import Pipeline, node
from dagrl.compiler.prune import prune
from dagrl.compiler.rows import RowSet, symbolic_rows
from dagrl.graph.pipeline import Origin
from dagrl.nodes import generate

Rows = Float32[Tensor, " B"]


class Both(NamedTuple):
    rewards: Rows
    spare: Rows | None
    unread: Rows


@node()
def both(tokens: Float32[Tensor, "B T"], *, wanted: frozenset[str]) -> Both: ...


def with_reference(toy, coefficient: float) -> Pipeline:
    with Pipeline("p") as p:
        actor = toy.group("actor")
        tokens = toy.draw(actor, toy.source())
        before = toy.old(actor, tokens)
        reference = toy.reference(toy.group("ref", trains=False), tokens)
        advantages = toy.center(toy.judge(tokens))
        loss = toy.ratio() + coefficient * toy.distance()
        toy.learn(actor, tokens, before, reference, advantages, loss=loss)
    return p


def test_coefficient_zero_removes_the_call_its_group_and_says_why(toy) -> None:
    plan = toy.plan_of(with_reference(toy, 0))
    assert plan.pruned == {"reference": "only loss term `distance` of `learn` would read it, with coefficient 0"}
    assert [group.name for group in plan.groups] == ["actor"]
    assert "reference" not in toy.ids(plan)
    kept = toy.plan_of(with_reference(toy, 0.1))
    assert kept.pruned == {}
    assert [group.name for group in kept.groups] == ["actor", "ref"]


def test_everything_else_of_the_plan_is_the_same_without_the_term(toy) -> None:
    without, kept = toy.plan_of(with_reference(toy, 0)), toy.plan_of(with_reference(toy, 0.1))
    for op in without.runs:
        other = toy.run_of(kept, op.call)
        assert (op.filters, op.source, op.version) == (other.filters, other.source, other.version)


def test_a_call_read_by_pruned_calls_only_is_pruned_too(toy) -> None:
    with Pipeline("p") as p:
        tokens = toy.draw(toy.group("actor"), toy.source())
        rewards = toy.judge(tokens)
        extra = toy.center(toy.judge(tokens, name="extra"))
        toy.report(rewards, extra.only())
    plan = toy.plan_of(p)
    assert plan.pruned == {
        "extra": "passed to `center`, but no call that runs reads its columns",
        "center": "passed to `report`, but no call that runs reads its columns",
    }


def test_optional_and_unread_columns_are_not_handed_on(toy) -> None:
    with Pipeline("p") as p:
        tokens = toy.draw(toy.group("actor"), toy.source())
        toy.report(both(tokens))
    assert toy.run_of(toy.plan_of(p), "both").writes == ("rewards",)
    live = prune(p, symbolic_rows(p))
    assert live.columns["both"] == {"rewards"}
    assert live.reads["report"] == {"rewards": Origin("both", "rewards")}
    assert live.readers(Origin("both", "rewards")) == ["report"]
    assert live.readers(Origin("both", "spare")) == []


def test_an_optional_read_keeps_a_call_when_it_is_passed(toy) -> None:
    with Pipeline("p") as p:
        rewards = toy.judge(toy.draw(toy.group("actor"), toy.source()))
        toy.report(rewards, toy.center(rewards))
    assert toy.plan_of(p).pruned == {}
    assert "center" in toy.ids(toy.plan_of(p))


def test_a_dropped_term_is_named_through_a_rename(toy) -> None:
    with Pipeline("p") as p:
        actor = toy.group("actor")
        tokens = toy.draw(actor, toy.source())
        second = toy.old(actor, tokens, name="second").rename(old_logprobs="ref_logprobs")
        loss = toy.ratio() + 0 * toy.distance()
        toy.learn(actor, tokens, toy.old(actor, tokens), second, toy.center(toy.judge(tokens)), loss=loss)
    assert "loss term `distance` of `learn`" in toy.plan_of(p).pruned["second"]


def filtered(toy, *, read_kept: bool) -> Pipeline:
    """A filter whose edge reaches the root only through a call that the root does not read."""
    with Pipeline("p") as p:
        tokens = toy.draw(toy.group("actor"), toy.source())
        rewards = toy.judge(tokens)
        kept = toy.keep(rewards)
        advantages = toy.center(rewards, kept)
        toy.report(rewards, advantages if read_kept else advantages.only())
    return p


def test_a_pruned_reader_leaves_the_filter_on_the_rows(toy) -> None:
    plan = toy.plan_of(filtered(toy, read_kept=False))
    assert "center" in plan.pruned
    report = toy.run_of(plan, "report")
    assert report.filters == ("keep",)
    assert "keep" in report.after
    assert "keep" in toy.ids(plan)
    assert toy.run_of(toy.plan_of(filtered(toy, read_kept=True)), "report").filters == report.filters


def test_what_a_filter_reads_is_kept_for_it(toy) -> None:
    with Pipeline("p") as p:
        tokens = toy.draw(toy.group("actor"), toy.source())
        kept = toy.keep(toy.judge(tokens, name="for_filter"))
        toy.report(toy.judge(tokens), kept)
    plan = toy.plan_of(p)
    assert toy.run_of(plan, "for_filter").writes == ("rewards",)
    assert toy.run_of(plan, "keep").writes == ()
    assert toy.run_of(plan, "judge").filters == ()


def test_rows_are_the_source_and_all_filters_passed(toy) -> None:
    with Pipeline("p") as p:
        tokens = toy.draw(toy.group("actor"), toy.source())
        rewards = toy.judge(tokens)
        first = toy.keep(rewards)
        second = toy.keep(rewards, first, name="second")
        toy.report(rewards, second)
    rows = symbolic_rows(p)
    only = frozenset({"source"})
    assert rows["source"].read == RowSet(only, frozenset())
    assert rows["keep"].read == RowSet(only, frozenset())
    assert rows["keep"].handed_on == RowSet(only, frozenset({"keep"}))
    assert rows["second"].read == RowSet(only, frozenset({"keep"}))
    assert rows["report"].read == RowSet(only, frozenset({"keep", "second"}))
    assert toy.run_of(toy.plan_of(p), "report").filters == ("keep", "second")


def test_the_source_lives_even_when_nobody_reads_its_columns(toy) -> None:
    @node(writes="rewards")
    def constant(messages: Rows | None = None) -> Rows: ...

    with Pipeline("p") as p:
        toy.report(constant(toy.source().only()))
    plan = toy.plan_of(p)
    assert toy.ids(plan)[:2] == ["source", "constant"]
    assert toy.run_of(plan, "constant").after == ("source",)
    assert toy.run_of(plan, "source").writes == ()


def test_built_in_generate_computes_only_what_is_read(toy) -> None:
    optional = {write.name for write in generate.contract.writes if write.optional}
    assert optional == {"responses", "prompt_ids", "prompt_mask", "rollout_logprobs", "response_text"}
