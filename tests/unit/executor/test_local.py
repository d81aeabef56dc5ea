"""The in-process executor on pipelines of small nodes, without a model: rows, filters, states, metrics, failures."""

from dataclasses import dataclass
from typing import NamedTuple

import pytest
import torch
from jaxtyping import Bool, Float32, Int64
from torch import Tensor

from dagrl import Mean, Metrics, Objects, Pipeline, Sum, node
from dagrl.compiler import compile_pipelines
from dagrl.errors import NodeError
from dagrl.executor.events import ColumnsFreed, Event, OpFailed, OpFinished
from dagrl.executor.local import LocalExecutor, Planned, SourceRows
from dagrl.nodes import prompts, report


@node(writes="rewards")
def score(group_ids: Int64[Tensor, " B"], answers: Objects[str]) -> Float32[Tensor, " B"]:
    """A reward that says which prompt it belongs to."""
    assert len(answers) == len(group_ids)
    return group_ids.float()


@node(rows="filter")
def odd_groups(group_ids: Int64[Tensor, " B"], rewards: Float32[Tensor, " B"]) -> Bool[Tensor, " B"]:
    """Keeps the groups with odd numbers."""
    return group_ids % 2 == 1


@node(rows="filter")
def nothing(rewards: Float32[Tensor, " B"]) -> Bool[Tensor, " B"]:
    """Keeps no row."""
    return torch.zeros_like(rewards, dtype=torch.bool)


@node()
def watch(rewards: Float32[Tensor, " B"], group_ids: Int64[Tensor, " B"], seeds: Int64[Tensor, " B"]) -> Metrics:
    """Tells what it saw."""
    SEEN.append((rewards.tolist(), group_ids.tolist(), seeds.tolist()))
    return Metrics({"watched": Sum(float(len(rewards)))})


SEEN: list[tuple[list[float], list[int], list[int]]] = []


def planned(pipeline: Pipeline) -> Planned:
    return Planned(pipeline, compile_pipelines([pipeline])[0])


def rows(first: int, count: int) -> SourceRows:
    return SourceRows(torch.arange(count), torch.arange(first, first + count))


def run_once(pipeline: Pipeline, *, seed: int = 0, step: int = 1, count: int = 4) -> tuple[Metrics, list[Event]]:
    events: list[Event] = []
    SEEN.clear()
    one = planned(pipeline)
    executor = LocalExecutor([one], seed=seed, total_steps=1)
    executor.subscribe(events.append)
    return executor.run(one, step, {"prompts": rows(0, count)}), events


def batch_of(n: int = 2):
    return prompts(data="zoo:larger", batch_size=4, n=n)


def test_rows_are_prompts_times_n_and_metrics_of_row_columns_are_kept() -> None:
    with Pipeline("p") as pipeline:
        watch(score(batch_of()))
    metrics, events = run_once(pipeline)
    assert SEEN[0][:2] == ([0, 0, 1, 1, 2, 2, 3, 3], [0, 0, 1, 1, 2, 2, 3, 3])
    numbers = metrics.numbers()
    assert numbers["reward/mean"] == 1.5
    assert (numbers["reward/min"], numbers["reward/max"], numbers["reward/unscorable"]) == (0, 3, 0)
    assert [event.op for event in events if isinstance(event, OpFinished)] == ["prompts", "score", "watch"]
    assert [event.rows for event in events if isinstance(event, OpFinished)] == [8, 8, 8]


def test_a_filter_takes_rows_away_from_every_reader_of_its_edge() -> None:
    with Pipeline("p") as pipeline:
        reward = score(batch_of())
        watch(reward, odd_groups(reward))
    run_once(pipeline)
    assert SEEN[0][:2] == ([1, 1, 3, 3], [1, 1, 3, 3])


def test_a_filter_holds_also_where_its_edge_is_only_inherited() -> None:
    @node(writes="rewards")
    def halve(rewards: Float32[Tensor, " B"]) -> Float32[Tensor, " B"]:
        return rewards / 2

    with Pipeline("p") as pipeline:
        reward = score(batch_of())
        watch(halve(reward, odd_groups(reward)))
    run_once(pipeline)
    assert SEEN[0][0] == [0.5, 0.5, 1.5, 1.5]


def test_columns_from_before_a_filter_join_on_row_ids() -> None:
    @node()
    def both(rewards: Float32[Tensor, " B"], before: Float32[Tensor, " B"]) -> Metrics:
        assert rewards.tolist() == before.tolist()
        return Metrics({"rows": Sum(float(len(rewards)))})

    @node(writes="rewards")
    def same(rewards: Float32[Tensor, " B"]) -> Float32[Tensor, " B"]:
        return rewards.clone()

    with Pipeline("p") as pipeline:
        reward = score(batch_of())
        both(same(reward, odd_groups(reward)), reward.rename(rewards="before"))
    metrics, _ = run_once(pipeline)
    assert metrics["rows"] == Sum(4.0)


def test_no_rows_left_is_a_step_with_empty_columns() -> None:
    with Pipeline("p") as pipeline:
        reward = score(batch_of())
        watch(reward, nothing(reward))
    metrics, _ = run_once(pipeline)
    assert SEEN[0] == ([], [], [])
    assert metrics["watched"] == Sum(0.0)


def test_seeds_depend_on_run_step_call_and_row_alone() -> None:
    with Pipeline("p") as pipeline:
        reward = score(batch_of())
        watch(reward)
        watch(reward, odd_groups(reward), name="second")
    seen = []
    for seed, step in ((0, 1), (0, 1), (1, 1), (0, 2)):
        run_once(pipeline, seed=seed, step=step)
        seen.append([list(entry) for entry in SEEN])
    assert seen[0] == seen[1]
    assert len({tuple(run[0][2]) for run in seen}) == 3
    whole, filtered = seen[0]
    assert len(set(whole[2])) == 8
    assert set(whole[2]).isdisjoint(filtered[2])


def test_state_goes_in_and_the_new_one_comes_out_next_step() -> None:
    @dataclass(frozen=True)
    class Count:
        steps: int = 0

    @node(split="batch")
    def count_steps(rewards: Float32[Tensor, " B"], *, state: Count) -> tuple[Count, Metrics]:
        return Count(state.steps + 1), Metrics({"count": Mean(float(state.steps), 1.0)})

    with Pipeline("p") as pipeline:
        count_steps(score(batch_of()), state=Count(5))
    one = planned(pipeline)
    executor = LocalExecutor([one], seed=0, total_steps=3)
    counts = [executor.run(one, step, {"prompts": rows(0, 4)})["count"].value for step in range(3)]
    assert counts == [5, 6, 7]


def test_metrics_of_a_node_called_twice_carry_the_calls_name() -> None:
    with Pipeline("p") as pipeline:
        reward = score(batch_of())
        watch(reward)
        watch(reward, name="again")
    metrics, _ = run_once(pipeline)
    assert {"watch/watched", "again/watched"} <= set(metrics)


def test_two_writers_of_rewards_keep_their_statistics_apart() -> None:
    @node(writes="rewards")
    def negative(group_ids: Int64[Tensor, " B"], answers: Objects[str]) -> Float32[Tensor, " B"]:
        return -group_ids.float()

    with Pipeline("p") as pipeline:
        batch = batch_of()
        watch(score(batch))
        report(batch, negative(batch))
    metrics, _ = run_once(pipeline)
    assert metrics["score/reward/mean"].value == 1.5
    assert metrics["negative/reward/mean"].value == -1.5


def test_unscorable_rows_are_counted_and_left_out_of_the_mean() -> None:
    @node(writes="rewards")
    def broken(group_ids: Int64[Tensor, " B"], answers: Objects[str]) -> Float32[Tensor, " B"]:
        return torch.where(group_ids == 1, float("nan"), group_ids.float())

    with Pipeline("p") as pipeline:
        batch = batch_of()
        report(batch, broken(batch))
    numbers = run_once(pipeline)[0].numbers()
    assert numbers["reward/unscorable"] == 2
    assert numbers["reward/mean"] == pytest.approx((0 + 2 + 3) / 3)
    assert (numbers["reward/min"], numbers["reward/max"]) == (0, 3)


def test_columns_are_freed_once_after_their_last_reader() -> None:
    with Pipeline("p") as pipeline:
        watch(score(batch_of()))
    _, events = run_once(pipeline)
    freed = [column for event in events if isinstance(event, ColumnsFreed) for column in event.columns]
    assert sorted(freed) == ["prompts.answers", "score.rewards"]
    assert [event.bytes for event in events if isinstance(event, ColumnsFreed)] == [0, 8 * 4]


class Pair(NamedTuple):
    rewards: Float32[Tensor, " B"]
    returns: Float32[Tensor, "B T"] | None


def bad_node(kind: str):
    @node(writes="rewards")
    def misbehave(group_ids: Int64[Tensor, " B"], answers: Objects[str]) -> Float32[Tensor, " B"]:
        return {
            "rows": torch.zeros(3),
            "dtype": torch.zeros(8, dtype=torch.float64),
            "dims": torch.zeros(8, 1),
            "type": [0.0] * 8,
            "none": None,
        }[kind]  # type: ignore[return-value]

    return misbehave


@pytest.mark.parametrize(
    ("kind", "message"),
    [
        ("rows", r"`misbehave` returned 3 rows for `rewards`, it was given 8"),
        ("dtype", r"`misbehave` returned float64\[8\] for `rewards`, declared f32\[B\]"),
        ("dims", r"`misbehave` returned float32\[8, 1\] for `rewards`, declared f32\[B\]"),
        ("type", r"`misbehave` returned a list for `rewards`, declared f32\[B\]"),
        ("none", r"`misbehave` returned a NoneType for `rewards`"),
    ],
)
def test_a_result_that_breaks_the_contract_names_the_node(kind: str, message: str) -> None:
    with Pipeline("p") as pipeline:
        watch(bad_node(kind)(batch_of()))
    with pytest.raises(NodeError, match=message):
        run_once(pipeline)


def test_an_edited_input_names_the_node_and_the_column() -> None:
    @node(writes="returns")
    def edit(rewards: Float32[Tensor, " B"]) -> Float32[Tensor, " B"]:
        return rewards.mul_(2)

    @node()
    def end(returns: Float32[Tensor, " B"]) -> Metrics:
        return Metrics()

    with Pipeline("p") as pipeline:
        end(edit(score(batch_of())))
    with pytest.raises(NodeError, match="`edit` edited its input `rewards` in place"):
        run_once(pipeline)


def test_optional_columns_are_asked_for_only_when_read() -> None:
    asked = []

    @node()
    def end(rewards: Float32[Tensor, " B"]) -> Metrics:
        return Metrics()

    @node()
    def end_of_both(rewards: Float32[Tensor, " B"], returns: Float32[Tensor, "B T"]) -> Metrics:
        return Metrics()

    @node()
    def make(group_ids: Int64[Tensor, " B"], answers: Objects[str], *, wanted: frozenset[str]) -> Pair:
        asked.append(wanted)
        return Pair(group_ids.float(), None)

    with Pipeline("p") as pipeline:
        end(make(batch_of()))
    run_once(pipeline)
    assert asked == [frozenset({"rewards"})]
    with Pipeline("q") as pipeline:
        end_of_both(make(batch_of()))
    with pytest.raises(NodeError, match="`make` returned None for `returns`, which a later node reads"):
        run_once(pipeline)


def test_a_raising_node_is_named_with_pipeline_and_step() -> None:
    @node()
    def fails(rewards: Float32[Tensor, " B"]) -> Metrics:
        raise ValueError("no such luck")

    with Pipeline("p") as pipeline:
        fails(score(batch_of()))
    one = planned(pipeline)
    events: list[Event] = []
    executor = LocalExecutor([one], seed=0, total_steps=1)
    executor.subscribe(events.append)
    with pytest.raises(ValueError, match="no such luck") as raised:
        executor.run(one, 7, {"prompts": rows(0, 4)})
    assert "in node `fails`" in raised.value.__notes__[0]
    assert "step 7" in raised.value.__notes__[0]
    (failed,) = [event for event in events if isinstance(event, OpFailed)]
    assert (failed.op, failed.step, failed.error) == ("fails", 7, "ValueError: no such luck")


def test_what_a_node_does_to_group_ids_stays_with_it() -> None:
    @node(writes="returns")
    def regroup(rewards: Float32[Tensor, " B"], group_ids: Int64[Tensor, " B"]) -> Float32[Tensor, " B"]:
        group_ids.zero_()
        return rewards.clone()

    @node()
    def end(returns: Float32[Tensor, " B"], group_ids: Int64[Tensor, " B"]) -> Metrics:
        assert group_ids.tolist() == [0, 0, 1, 1, 2, 2, 3, 3]
        return Metrics()

    with Pipeline("p") as pipeline:
        end(regroup(score(batch_of())))
    run_once(pipeline)


def test_object_columns_cannot_be_assigned_to() -> None:
    @node()
    def cheat(answers: Objects[str]) -> Metrics:
        answers[0] = "mine"  # type: ignore[index]
        return Metrics()

    with Pipeline("p") as pipeline:
        cheat(batch_of())
    with pytest.raises(ValueError, match="read-only"):
        run_once(pipeline)


@pytest.mark.parametrize("name", ["watched", "reward/mean"])
def test_two_calls_cannot_report_one_metric(name: str) -> None:
    @node()
    def copycat(rewards: Float32[Tensor, " B"]) -> Metrics:
        return Metrics({name: Sum(1.0)})

    with Pipeline("p") as pipeline:
        reward = score(batch_of())
        watch(reward)
        copycat(reward)
    with pytest.raises(
        NodeError, match=f"`copycat` reports the metric `{name}`, which `(watch|score)` reports already"
    ):
        run_once(pipeline)


def test_two_calls_that_write_one_column_have_their_metrics_by_name() -> None:
    """Whichever a later call reads; a call that goes on from the other's column is no rival of it."""

    @node(writes="advantages")
    def first(rewards: Float32[Tensor, " B"]) -> tuple[Float32[Tensor, " B"], Metrics]:
        return rewards, Metrics({"share": Sum(1.0)})

    @node(writes="advantages")
    def second(rewards: Float32[Tensor, " B"]) -> tuple[Float32[Tensor, " B"], Metrics]:
        return rewards, Metrics({"share": Sum(2.0)})

    @node(writes="advantages")
    def halved(advantages: Float32[Tensor, " B"]) -> tuple[Float32[Tensor, " B"], Metrics]:
        return advantages / 2, Metrics({"halved": Sum(3.0)})

    @node()
    def taken(advantages: Float32[Tensor, " B"]) -> Metrics:
        return Metrics()

    with Pipeline("p") as pipeline:
        reward = score(batch_of())
        taken(first(reward), name="one")
        taken(second(reward), name="other")
    found = run_once(pipeline)[0].numbers()
    assert (found["first/share"], found["second/share"]) == (1, 2)
    with Pipeline("p") as pipeline:
        taken(halved(first(score(batch_of()))))
    found = run_once(pipeline)[0].numbers()
    assert (found["share"], found["halved"]) == (1, 3)


def test_a_node_that_calls_sys_exit_is_an_error() -> None:
    @node()
    def leave(rewards: Float32[Tensor, " B"]) -> Metrics:
        raise SystemExit(0)

    with Pipeline("p") as pipeline:
        leave(score(batch_of()))
    with pytest.raises(NodeError, match=r"(?s)sys\.exit\(0\) was called.*in node `leave`"):
        run_once(pipeline)


@pytest.mark.parametrize("value", [None, "text", iter([1])])
def test_an_object_column_that_is_no_list_names_the_node(value: object) -> None:
    @node(writes="response_text")
    def tell(answers: Objects[str]) -> Objects[str]:
        return value  # type: ignore[return-value]

    @node()
    def end(response_text: Objects[str]) -> Metrics:
        return Metrics()

    with Pipeline("p") as pipeline:
        end(tell(batch_of()))
    with pytest.raises(NodeError, match=r"`tell` returned a .* for `response_text`: give a list"):
        run_once(pipeline)


def test_a_state_of_another_type_is_refused() -> None:
    @dataclass(frozen=True)
    class Count:
        steps: int = 0

    @node(split="batch")
    def forget(rewards: Float32[Tensor, " B"], *, state: Count) -> Count:
        return None  # type: ignore[return-value]

    with Pipeline("p") as pipeline:
        forget(score(batch_of()), state=Count(5))
    # A node that only keeps state writes nothing, so it is a root.
    with pytest.raises(NodeError, match="`forget` returned a NoneType as its new state, its annotation says Count"):
        run_once(pipeline)


def test_a_second_generate_on_rows_that_a_filter_took_away() -> None:
    from dagrl import ResourcePool, WorkerGroup, policy
    from dagrl.nodes import generate, verify

    actor = WorkerGroup("actor", policy("zoo:tiny"), pool=ResourcePool("main"))
    with Pipeline("p") as pipeline:
        batch = batch_of()
        none = nothing(score(batch))
        report(batch, verify(batch, generate(actor, batch, none, max_new_tokens=4)))
    metrics, _ = run_once(pipeline)
    assert metrics["verify/reward/mean"] == Mean(0.0, 0.0)


def test_a_chain_of_rewards_keeps_the_plain_name_for_its_end() -> None:
    @node(writes="rewards")
    def halved(rewards: Float32[Tensor, " B"]) -> Float32[Tensor, " B"]:
        return rewards / 2

    with Pipeline("p") as pipeline:
        batch = batch_of()
        report(batch, halved(score(batch)))
    metrics, _ = run_once(pipeline)
    assert metrics["reward/mean"].value == 0.75
    assert metrics["score/reward/mean"].value == 1.5
