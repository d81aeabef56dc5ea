"""Old log-probs come from the update's own forward pass only where that is exact; else the plan says why not."""

from collections.abc import Mapping

import pytest
from jaxtyping import Float32
from torch import Tensor

from dagrl import LossColumns, LossTerms, Metrics, Pipeline, Policy, node

Rows = Float32[Tensor, " B"]
Tokens = Float32[Tensor, "B T"]


@node(mutates=True)
def plain_update(actor: Policy, tokens: Tokens, old_logprobs: Tokens, advantages: Rows) -> Metrics: ...


@node(mutates=True, split="minibatch")
def deaf_update(
    actor: Policy, tokens: Tokens, columns: LossColumns, *, loss: LossTerms, mini_batch_size: int = 0, epochs: int = 1
) -> Metrics: ...


@node(mutates=True, split="minibatch")
def curious_update(
    actor: Policy,
    tokens: Tokens,
    old_logprobs: Tokens,
    columns: LossColumns,
    *,
    loss: LossTerms,
    mini_batch_size: int = 0,
    epochs: int = 1,
    aliases: Mapping[str, str],
) -> Metrics: ...


def kept_reason(toy, pipeline: Pipeline, call: str = "old") -> str:
    plan = toy.plan_of(pipeline)
    assert plan.aliased == {}
    assert call in toy.ids(plan)
    assert all(op.aliases == {} for op in plan.runs)
    return plan.kept[call]


def test_the_update_provides_it(toy) -> None:
    plan = toy.plan_of(toy.update())
    assert plan.aliased == {"old": "`old_logprobs` is the detached `new_logprobs` of `learn`'s own forward pass"}
    assert plan.kept == {}
    assert "old" not in toy.ids(plan)
    learn = toy.run_of(plan, "learn")
    assert learn.aliases == {"old_logprobs": "new_logprobs"}
    assert "old_logprobs" not in {read.column for read in learn.reads}
    assert "old" not in learn.after
    assert all("old." not in column for op in plan.ops if op.kind == "free" for column in op.columns)


def test_under_a_renamed_column_and_under_two(toy) -> None:
    with Pipeline("p") as p:
        actor = toy.group("actor")
        tokens = toy.draw(actor, toy.source())
        before = toy.old(actor, tokens)
        toy.learn(actor, tokens, before.rename(old_logprobs="older_logprobs"), loss=toy.twice())
    assert toy.run_of(toy.plan_of(p), "learn").aliases == {"older_logprobs": "new_logprobs"}
    with Pipeline("q") as q:
        actor = toy.group("actor")
        tokens = toy.draw(actor, toy.source())
        before, advantages = toy.old(actor, tokens), toy.center(toy.judge(tokens))
        loss = toy.ratio() + toy.twice()
        toy.learn(actor, tokens, before, before.rename(old_logprobs="older_logprobs"), advantages, loss=loss)
    learn = toy.run_of(toy.plan_of(q), "learn")
    assert learn.aliases == {"old_logprobs": "new_logprobs", "older_logprobs": "new_logprobs"}


@pytest.mark.parametrize("size", [0, 16, 17])
def test_one_mini_batch_of_all_rows_is_fine(toy, size: int) -> None:
    assert toy.plan_of(toy.update(mini_batch_size=size)).aliased


def test_mini_batches(toy) -> None:
    assert kept_reason(toy, toy.update(mini_batch_size=15)) == "`learn` takes 16 rows in mini-batches of 15"


def test_epochs(toy) -> None:
    assert kept_reason(toy, toy.update(epochs=2)) == "`learn` runs 2 epochs"


def test_dropout(toy) -> None:
    assert kept_reason(toy, toy.update(dropout=True)) == "`actor` trains with dropout"


def test_another_group(toy) -> None:
    assert kept_reason(toy, toy.update(other_actor=True)) == "`learn` runs on another worker group"


def test_a_mutation_between(toy) -> None:
    step = toy.update(between=lambda actor, tokens, before: toy.nudge(actor, tokens))
    assert kept_reason(toy, step) == "the weights change between it and `learn`"


def test_a_mutation_of_another_group_between_is_fine(toy) -> None:
    step = toy.update(between=lambda actor, tokens, before: toy.nudge(toy.group("second"), tokens))
    assert toy.plan_of(step).aliased


def test_a_mutation_above_both_is_fine(toy) -> None:
    with Pipeline("p") as p:
        actor = toy.group("actor")
        tokens = toy.draw(actor, toy.source())
        toy.nudge(actor, tokens)
        advantages = toy.center(toy.judge(tokens))
        toy.learn(actor, tokens, toy.old(actor, tokens), advantages, loss=toy.ratio())
    assert toy.plan_of(p).aliased


def test_a_second_reader(toy) -> None:
    step = toy.update(between=lambda actor, tokens, before: toy.watch(before))
    assert kept_reason(toy, step) == "it is read by `watch`, `learn`: only a single update can provide it"


def test_a_pruned_second_reader_does_not_count(toy) -> None:
    def between(actor, tokens, before) -> None:
        rewards = toy.judge(before.rename(old_logprobs="tokens"), name="unread")
        toy.report(toy.judge(tokens, name="live"), toy.center(rewards, name="unread_too").only())

    assert toy.plan_of(toy.update(between=between)).aliased


def other_rows(toy, *, filter_both: bool) -> Pipeline:
    with Pipeline("p") as p:
        actor = toy.group("actor")
        tokens = toy.draw(actor, toy.source())
        rewards = toy.judge(tokens)
        kept = toy.keep(rewards)
        before = toy.old(actor, tokens, kept) if filter_both else toy.old(actor, tokens)
        toy.learn(actor, tokens, before, toy.center(rewards), kept, loss=toy.ratio())
    return p


def test_other_rows(toy) -> None:
    assert kept_reason(toy, other_rows(toy, filter_both=False)) == "`learn` sees other rows"
    assert toy.plan_of(other_rows(toy, filter_both=True)).aliased


def test_other_inputs(toy) -> None:
    with Pipeline("p") as p:
        actor = toy.group("actor")
        batch = toy.source()
        tokens = toy.draw(actor, batch)
        before = toy.old(actor, toy.draw(actor, batch))
        toy.learn(actor, tokens, before, toy.center(toy.judge(tokens)), loss=toy.ratio())
    assert kept_reason(toy, p) == "`learn` does not read the same `tokens`"


@pytest.mark.parametrize("update", [plain_update, deaf_update])
def test_a_reader_that_is_no_update_with_aliases(toy, update) -> None:
    with Pipeline("p") as p:
        actor = toy.group("actor")
        tokens = toy.draw(actor, toy.source())
        options = {"loss": toy.ratio()} if update is deaf_update else {}
        update(actor, tokens, toy.old(actor, tokens), toy.center(toy.judge(tokens)), **options)
    assert kept_reason(toy, p) == f"its reader `{update.__name__}` is no update"


def test_a_column_that_the_update_reads_itself(toy) -> None:
    with Pipeline("p") as p:
        actor = toy.group("actor")
        tokens = toy.draw(actor, toy.source())
        advantages = toy.center(toy.judge(tokens))
        curious_update(actor, tokens, toy.old(actor, tokens), advantages, loss=toy.ratio())
    assert kept_reason(toy, p) == "`curious_update` reads `old_logprobs` itself, not only in its loss"
    with Pipeline("q") as q:
        actor = toy.group("actor")
        tokens = toy.draw(actor, toy.source())
        reference = toy.reference(toy.group("ref"), tokens)
        values = toy.old(actor, tokens).rename(old_logprobs="values")
        toy.learn(actor, tokens, reference, values, loss=toy.distance())
    assert kept_reason(toy, q) == "`learn` reads `values` itself, not only in its loss"


def test_a_column_of_a_dropped_term_is_pruned_not_kept(toy) -> None:
    with Pipeline("p") as p:
        actor = toy.group("actor")
        tokens = toy.draw(actor, toy.source())
        reference = toy.reference(toy.group("ref"), tokens)
        before, advantages = toy.old(actor, tokens), toy.center(toy.judge(tokens))
        toy.learn(actor, tokens, before, reference, advantages, loss=0 * toy.ratio() + toy.distance())
    plan = toy.plan_of(p)
    assert (plan.aliased, plan.kept) == ({}, {})
    assert "old" in plan.pruned
