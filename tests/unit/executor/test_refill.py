"""Loops in a walk: rounds until enough groups have passed, and what their rows are afterwards, on any ranks."""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, NamedTuple

import pytest
import torch
from jaxtyping import Bool, Float32, Int64
from torch import Tensor

from dagrl import Mean, Metrics, Objects, Pipeline, Sum, WorkerGroup, node, policy, refill
from dagrl.compiler import compile_pipelines
from dagrl.controller import ClassWithInitArgs, NaiveWorkerGroup, ResourcePool
from dagrl.errors import DagrlError
from dagrl.executor.base import Executor
from dagrl.executor.events import ColumnsFreed, Event, OpFinished, OpStarted, RoundStarted
from dagrl.executor.layout import SourceRows
from dagrl.executor.process_sets import InProcessSet
from dagrl.graph.specs import ResourcePool as Pool
from dagrl.nodes import generate, prompts, ref_logprob
from dagrl.workers.deployment import Deployment, Planned
from dagrl.workers.host import NodeHost

#: What `watch` saw of each row: its seed in the loop and outside of it, its reward, its text and the sum of its values.
SEEN: dict[tuple[int, int], tuple[int, float, str, float]] = {}
N = 3


class Told(NamedTuple):
    """Columns of several kinds, as wide as the longest row of the round that this rank holds."""

    response_mask: Bool[Tensor, "B T"]
    advantages: Float32[Tensor, "B T"]
    response_text: Objects[str]
    rewards: Float32[Tensor, " B"]


@node()
def tell(seeds: Int64[Tensor, " B"], group_ids: Int64[Tensor, " B"]) -> Told:
    """Rows of different lengths; the reward says which group it is."""
    lengths = group_ids % 5 + 1
    mask = torch.arange(int(lengths.max()) if len(lengths) else 0) < lengths[:, None]
    texts = [f"row {seed}" for seed in seeds.tolist()]
    return Told(mask, mask * (seeds % 97)[:, None].float(), texts, group_ids.float())


@node(rows="filter", split="group")
def every_third(rewards: Float32[Tensor, " B"]) -> tuple[Bool[Tensor, " B"], Metrics]:
    """Keeps groups 0, 3, 6, ..."""
    kept = rewards.long() % 3 == 0
    return kept, Metrics({"share": Mean(float(kept.sum()), float(len(kept)))})


@node(rows="filter")
def odd(rewards: Float32[Tensor, " B"]) -> Bool[Tensor, " B"]:
    """Keeps groups 1, 3, 5, ..."""
    return rewards.long() % 2 == 1


@node(rows="filter", split="batch")
def above_mean(rewards: Float32[Tensor, " B"]) -> Bool[Tensor, " B"]:
    """Needs all rows of a round at once."""
    return rewards > rewards.mean()


@node(rows="filter")
def nothing(rewards: Float32[Tensor, " B"]) -> Bool[Tensor, " B"]:
    """Keeps no row."""
    return torch.zeros_like(rewards, dtype=torch.bool)


@node(rows="filter")
def not_the_first(seeds: Int64[Tensor, " B"], rewards: Float32[Tensor, " B"], group_ids: Int64[Tensor, " B"]) -> (
    Bool[Tensor, " B"]
):  # fmt: skip
    """Cuts a row out of each group."""
    lowest = {group: int(seeds[group_ids == group].min()) for group in group_ids.tolist()}
    return torch.tensor([seed != lowest[group] for seed, group in zip(seeds.tolist(), group_ids.tolist(), strict=True)])


@node(writes="returns", split="batch")
def whiten(rewards: Float32[Tensor, " B"], response_mask: Bool[Tensor, "B T"]) -> Float32[Tensor, "B T"]:
    """Needs all rows at once."""
    return ((rewards - rewards.mean()) / (rewards.std() + 1e-6))[:, None] * response_mask


@node()
def watch(
    advantages: Float32[Tensor, "B T"],
    rewards: Float32[Tensor, " B"],
    response_text: Objects[str],
    group_ids: Int64[Tensor, " B"],
    seeds: Int64[Tensor, " B"],
    returns: Float32[Tensor, "B T"] | None = None,
) -> Metrics:
    """Tells what each row holds, so that a column in the wrong row shows."""
    sums = advantages.sum(1) + (0 if returns is None else returns.sum(1))
    for group, seed, value, text, total in zip(
        group_ids.tolist(), seeds.tolist(), rewards.tolist(), response_text, sums.tolist(), strict=True
    ):
        SEEN[group, seed] = (int(text.removeprefix("row ")), value, text, round(total, 3))
    return Metrics({"watched": Sum(float(len(rewards)))})


def pipeline_of(
    *filters: Callable[..., Any], groups: int = 4, max_rounds: int = 4, n: int = N, size: int = 6, white: bool = False
) -> Pipeline:
    with Pipeline("p") as pipeline:
        with refill(groups=groups, max_rounds=max_rounds):
            told = tell(prompts(data="zoo:larger", batch_size=size, n=n))
            for each in filters:
                each(told)
        watch(told, *([whiten(told)] if white else []))
    return pipeline


class Stream:
    """The rows of the data, six prompts at a time, from the first group on."""

    def __init__(self, first: int = 0, size: int = 6) -> None:
        self.next, self.size = first, size

    def __call__(self, source: str) -> SourceRows:
        assert source == "prompts"
        ids = torch.arange(self.next, self.next + self.size)
        self.next += self.size
        return SourceRows(ids % 50, ids)


def executor_of(pipeline: Pipeline, ranks: int = 1) -> tuple[Executor, Planned, list[Event]]:
    planned = Planned(pipeline, compile_pipelines([pipeline])[0])
    deployment = Deployment((planned,), 0, 1)
    maker = ClassWithInitArgs(NodeHost, deployment, pools=deployment.pools())
    here = InProcessSet(NaiveWorkerGroup(ResourcePool([ranks]), maker))
    executor = Executor([planned], dict.fromkeys(deployment.pools(), here), seed=0, deadline=60.0)
    events: list[Event] = []
    executor.subscribe(events.append)
    return executor, planned, events


def run(pipeline: Pipeline, ranks: int = 1, stream: Stream | None = None) -> tuple[dict[str, float], list[Event]]:
    SEEN.clear()
    executor, planned, events = executor_of(pipeline, ranks)
    return executor.run(planned, 1, {}, stream or Stream()).numbers(), events


def groups_seen() -> list[int]:
    return sorted({group for group, _ in SEEN})


def counts(metrics: dict[str, float]) -> tuple[float, ...]:
    names = ("rounds", "groups_kept", "groups_dropped", "groups_left_over", "short")
    return tuple(metrics[f"refill/{name}"] for name in names)


def test_rounds_go_on_until_enough_groups_have_passed() -> None:
    stream = Stream()
    metrics, events = run(pipeline_of(every_third, groups=4), stream=stream)
    assert groups_seen() == [0, 3, 6, 9]
    assert metrics["watched"] == 4 * N
    assert counts(metrics) == (2, 4, 8, 0, 0)
    assert stream.next == 12
    ops = [event.op for event in events if isinstance(event, OpStarted)]
    assert ops == ["prompts", "tell", "every_third"] * 2 + ["watch"]


def test_each_row_holds_its_own_values_and_rounds_have_seeds_of_their_own() -> None:
    run(pipeline_of(every_third))
    assert len(SEEN) == 4 * N
    texts = {seed_inside for seed_inside, *_ in SEEN.values()}
    assert len(texts) == 4 * N
    for (group, _), (seed, reward, _, total) in SEEN.items():
        assert reward == group
        assert total == pytest.approx((group % 5 + 1) * (seed % 97))


def test_exactly_enough_in_the_first_round_draw_no_second() -> None:
    stream = Stream()
    metrics, _ = run(pipeline_of(every_third, groups=2), stream=stream)
    assert groups_seen() == [0, 3]
    assert counts(metrics) == (1, 2, 4, 0, 0)
    assert stream.next == 6


def test_more_than_enough_leave_the_lowest_groups() -> None:
    metrics, _ = run(pipeline_of(every_third, groups=3))
    assert groups_seen() == [0, 3, 6]
    assert counts(metrics) == (2, 3, 8, 1, 0)


def test_too_few_after_the_last_round_are_trained_on_with_a_warning(caplog: pytest.LogCaptureFixture) -> None:
    metrics, _ = run(pipeline_of(every_third, groups=9, max_rounds=3))
    assert groups_seen() == [0, 3, 6, 9, 12, 15]
    assert counts(metrics) == (3, 6, 12, 0, 1)
    assert "step 1 trains on these: 6 of 9 groups passed `refill` (test_refill.py:" in caplog.text
    assert "in 3 rounds of 18 prompts in all" in caplog.text


def test_no_group_at_all_is_a_step_without_rows(caplog: pytest.LogCaptureFixture) -> None:
    metrics, _ = run(pipeline_of(nothing, white=True), ranks=2)
    assert SEEN == {}
    assert counts(metrics) == (4, 0, 24, 0, 1)
    assert metrics["watched"] == 0
    assert "step 1 trains on nothing: 0 of 4 groups" in caplog.text


def test_a_single_row_for_each_prompt() -> None:
    metrics, _ = run(pipeline_of(every_third, n=1))
    assert groups_seen() == [0, 3, 6, 9]
    assert metrics["watched"] == 4


def test_rows_pass_that_every_filter_of_the_block_keeps() -> None:
    metrics, _ = run(pipeline_of(every_third, odd, groups=3))
    assert groups_seen() == [3, 9, 15]
    assert counts(metrics) == (3, 3, 15, 0, 0)


def test_a_filter_may_see_what_another_has_left() -> None:
    with Pipeline("p") as pipeline:
        with refill(groups=3, max_rounds=3):
            told = tell(prompts(data="zoo:larger", batch_size=6, n=N))
            kept = every_third(told)
            odd(told, kept)
        watch(told)
    metrics, events = run(pipeline, ranks=2)
    assert groups_seen() == [3, 9, 15]
    assert [event.rows for event in events if isinstance(event, OpFinished) and event.op == "odd"] == [2 * N] * 3
    assert metrics["watched"] == 3 * N


def test_groups_that_a_filter_cuts_count_with_the_rows_that_are_left() -> None:
    metrics, _ = run(pipeline_of(not_the_first, groups=7))
    assert groups_seen() == [0, 1, 2, 3, 4, 5, 6]
    assert metrics["watched"] == 7 * (N - 1)
    assert counts(metrics) == (2, 7, 0, 5, 0)


@pytest.mark.parametrize("ranks", [2, 3, 5])
@pytest.mark.parametrize("filters", [(every_third,), (above_mean,), (every_third, above_mean), (not_the_first,)])
def test_the_numbers_do_not_depend_on_the_ranks(ranks: int, filters: tuple[Callable[..., Any], ...]) -> None:
    alone, _ = run(pipeline_of(*filters, white=True))
    seen = dict(SEEN)
    assert seen
    spread, _ = run(pipeline_of(*filters, white=True), ranks)
    assert seen == SEEN
    assert spread == pytest.approx(alone, abs=1e-9)
    assert list(spread) == list(alone)


def test_metrics_inside_cover_the_rows_of_all_rounds() -> None:
    metrics, _ = run(pipeline_of(every_third, groups=4))
    assert metrics["share"] == pytest.approx(1 / 3)
    assert metrics["reward/mean"] == 5.5
    assert (metrics["reward/min"], metrics["reward/max"]) == (0, 11)


def test_what_later_ops_do_not_read_is_let_go_after_each_round_and_the_rest_once() -> None:
    executor, planned, events = executor_of(pipeline_of(every_third, groups=3))
    loop = planned.plan.loops[0]
    assert loop.keeps == ("tell.advantages", "tell.response_text", "tell.rewards")
    executor.run(planned, 1, {}, Stream())
    freed = [column for event in events if isinstance(event, ColumnsFreed) for column in event.columns]
    assert sorted(freed) == sorted(loop.keeps)
    num_bytes = sum(event.bytes for event in events if isinstance(event, ColumnsFreed))
    assert num_bytes == 3 * N * (4 + 5 * 4)  # a reward, and advantages as wide as the longest row of their rounds


@node(rows="filter")
def finite(returns: Float32[Tensor, "B T"]) -> Bool[Tensor, " B"]:
    """Reads what nobody reads below the loop."""
    return returns.isfinite().all(1)


def test_what_only_the_loop_reads_is_gone_when_it_is_over() -> None:
    with Pipeline("p") as pipeline:
        with refill(groups=3):
            told = tell(prompts(data="zoo:larger", batch_size=6, n=N))
            every_third(told)
            finite(whiten(told))
        watch(told)
    executor, planned, _ = executor_of(pipeline)
    (here,) = executor.site.sets
    held: list[int] = []

    def look(event: Event) -> None:
        if isinstance(event, OpStarted) and event.op in ("whiten", "watch") and isinstance(here, InProcessSet):
            held.append(here.hosts[0].frames("p").num_bytes)

    executor.subscribe(look)
    executor.run(planned, 1, {}, Stream())
    row = 5 * (4 + 1) + 4  # advantages and the mask, five wide, and a reward
    kept = row - 5  # nobody reads the mask any more
    assert held == [6 * N * row, 6 * N * row + 2 * N * kept, 3 * N * kept]


def test_each_round_is_told_with_what_has_passed_before() -> None:
    _, events = run(pipeline_of(every_third, groups=5))
    told = [(e.round, e.max_rounds, e.groups_passed, e.groups) for e in events if isinstance(e, RoundStarted)]
    assert told == [(1, 4, 0, 5), (2, 4, 2, 5), (3, 4, 4, 5)]
    assert {e.ops for e in events if isinstance(e, RoundStarted)} == {("prompts", "tell", "every_third")}


def test_a_node_that_fails_in_a_round_is_named_with_step_and_round() -> None:
    @node()
    def fragile(group_ids: Int64[Tensor, " B"], rewards: Float32[Tensor, " B"]) -> Metrics:
        if 7 in group_ids.tolist():
            raise ValueError("group 7 is broken")
        return Metrics()

    with pytest.raises(ValueError, match="group 7 is broken") as raised:
        run(pipeline_of(fragile, every_third), ranks=2)
    (note,) = [text for text in raised.value.__notes__ if "in node" in text]
    assert "in node `fragile` (test_refill.py:" in note
    assert "of pipeline `p`, step 1, round 2 of `refill`" in note


def test_a_state_goes_through_the_rounds() -> None:
    @dataclass(frozen=True)
    class Count:
        rounds: int = 0

    @node(split="batch")
    def count(rewards: Float32[Tensor, " B"], *, state: Count) -> Count:
        return Count(state.rounds + 1)

    with Pipeline("p") as pipeline:
        with refill(groups=4):
            told = tell(prompts(data="zoo:larger", batch_size=6, n=N))
            count(told, state=Count(5))
            every_third(told)
        watch(told)
    executor, planned, _ = executor_of(pipeline, 2)
    executor.run(planned, 1, {}, Stream())
    assert executor.states["p"]["count"] == Count(7)


def test_two_blocks_draw_from_sources_of_their_own() -> None:
    with Pipeline("p") as pipeline:
        for name, each in (("first", every_third), ("second", odd)):
            with refill(groups=4, max_rounds=3):
                told = tell(prompts(data="zoo:larger", batch_size=6, n=2, name=f"{name}_prompts"), name=f"{name}_told")
                each(told)
            watch(told, name=name)
    SEEN.clear()
    executor, planned, _ = executor_of(pipeline, 2)
    streams = {"first_prompts": Stream(), "second_prompts": Stream(600)}
    metrics = executor.run(planned, 1, {}, lambda name: streams[name]("prompts")).numbers()
    assert groups_seen() == [0, 3, 6, 9, 601, 603, 605, 607]
    assert (metrics["refill/rounds"], metrics["refill#2/rounds"]) == (2, 2)
    assert (metrics["refill/groups_dropped"], metrics["refill#2/groups_left_over"]) == (8, 2)


def test_a_loop_that_nobody_draws_for_says_so() -> None:
    executor, planned, _ = executor_of(pipeline_of(every_third))
    with pytest.raises(DagrlError, match="`prompts` stands in a loop"):
        executor.run(planned, 1, {})


@node(rows="filter", split="group")
def likely(ref_logprobs: Float32[Tensor, "B T"], group_ids: Int64[Tensor, " B"]) -> Bool[Tensor, " B"]:
    """Keeps every other group, by a column that another pool has written."""
    assert len(ref_logprobs) == len(group_ids)
    return group_ids % 2 == 0


@node()
def compare(
    rollout_logprobs: Float32[Tensor, "B T"],
    ref_logprobs: Float32[Tensor, "B T"],
    again: Float32[Tensor, "B T"],
    response_mask: Bool[Tensor, "B T"],
    group_ids: Int64[Tensor, " B"],
) -> Metrics:
    """Two forward passes of one model, one inside the loop and one below it, on the same rows."""
    gap = ((ref_logprobs - again) * response_mask).abs().sum(1)
    for row, (group, total) in enumerate(zip(group_ids.tolist(), rollout_logprobs.sum(1).tolist(), strict=True)):
        SEEN[group, row] = (0, float(gap[row]), "", round(total, 4))
    return Metrics({"compared": Sum(float(len(gap)))})


def test_pools_of_their_own_hold_the_rows_of_all_rounds() -> None:
    """What one pool writes in a round another one reads in it, and again below the loop, other columns too."""
    found: list[dict[tuple[int, int], tuple[int, float, str, float]]] = []
    for pools in (("one", "two"), ("one", "one")):
        actor, ref = (
            WorkerGroup(name, policy("zoo:tiny", precision="fp32"), pool=Pool(pool, [1]))
            for name, pool in zip(("actor", "ref"), pools, strict=True)
        )
        with Pipeline("p") as pipeline:
            with refill(groups=3, max_rounds=4):
                rollout = generate(actor, prompts(data="zoo:larger", batch_size=3, n=2), max_new_tokens=4)
                inside = ref_logprob(ref, rollout, name="inside")
                likely(inside)
            again = ref_logprob(ref, rollout, name="again").rename(ref_logprobs="again")
            compare(rollout, inside, again)
        planned = Planned(pipeline, compile_pipelines([pipeline])[0])
        deployment = Deployment((planned,), 0, 1)
        sets = {
            pool: InProcessSet(
                NaiveWorkerGroup(
                    ResourcePool([1]), ClassWithInitArgs(NodeHost, deployment, pools=(pool,)), name_prefix=pool
                )
            )
            for pool in dict.fromkeys(pools)
        }
        SEEN.clear()
        executor = Executor([planned], sets, seed=0, deadline=60.0)
        metrics = executor.run(planned, 1, {}, Stream(size=3))
        assert metrics["compared"] == Sum(6.0)
        assert groups_seen() == [0, 2, 4]
        assert all(gap == 0.0 for _, gap, *_ in SEEN.values())
        found.append(dict(SEEN))
    assert found[0] == found[1]
