"""Plans of small nodes on several ranks: the numbers are those of one rank, whatever moves between them."""

from typing import NamedTuple

import pytest
import torch
from jaxtyping import Bool, Float32, Int64
from torch import Tensor

from dagrl import Mean, Metrics, Objects, Pipeline, Sum, node
from dagrl.compiler import compile_pipelines
from dagrl.controller import ClassWithInitArgs, NaiveWorkerGroup, ResourcePool
from dagrl.errors import NodeError
from dagrl.executor.base import Executor
from dagrl.executor.events import ColumnsFreed, Event, OpFinished
from dagrl.executor.layout import SourceRows
from dagrl.executor.process_sets import InProcessSet
from dagrl.nodes import prompts, reinforce_pp_advantage, report
from dagrl.workers.deployment import Deployment, Planned
from dagrl.workers.host import NodeHost


class Told(NamedTuple):
    """Columns of several kinds, as wide as the longest row that this rank holds."""

    response_mask: Bool[Tensor, "B T"]
    advantages: Float32[Tensor, "B T"]
    response_text: Objects[str]


@node()
def tell(seeds: Int64[Tensor, " B"], group_ids: Int64[Tensor, " B"]) -> Told:
    """Rows of different lengths: those of one rank are padded to that rank's longest."""
    lengths = group_ids % 5 + 1
    mask = torch.arange(int(lengths.max()) if len(lengths) else 0) < lengths[:, None]
    return Told(mask, mask * (seeds % 97)[:, None].float(), [f"row {seed % 97}" for seed in seeds.tolist()])


@node(writes="rewards")
def score(advantages: Float32[Tensor, "B T"], response_text: Objects[str]) -> Float32[Tensor, " B"]:
    """Reads a wide and an object column of one row."""
    said = torch.tensor([float(text.removeprefix("row ")) for text in response_text])
    return advantages.sum(1) + said if len(said) else advantages.sum(1)


@node(writes="returns", split="batch")
def whiten(
    rewards: Float32[Tensor, " B"], response_mask: Bool[Tensor, "B T"]
) -> tuple[Float32[Tensor, "B T"], Metrics]:
    """Needs all rows at once."""
    white = (rewards - rewards.mean()) / (rewards.std() + 1e-6)
    return white[:, None] * response_mask, Metrics({"rows_at_once": Sum(float(len(rewards)))})


@node(rows="filter")
def high(rewards: Float32[Tensor, " B"], group_ids: Int64[Tensor, " B"]) -> Bool[Tensor, " B"]:
    """Keeps rows of odd groups that score high."""
    return (rewards > 100) & (group_ids % 2 == 1)


@node()
def watch(
    returns: Float32[Tensor, "B T"],
    rewards: Float32[Tensor, " B"],
    response_text: Objects[str],
    seeds: Int64[Tensor, " B"],
) -> Metrics:
    """Tells what each row holds, so that a column in the wrong row shows."""
    for row, value, text, seed in zip(returns, rewards.tolist(), response_text, seeds.tolist(), strict=True):
        SEEN[seed] = (round(float(row.sum()), 4), value, text)
    return Metrics({"watched": Sum(float(len(rewards))), "rewards": Mean(float(rewards.sum()), float(len(rewards)))})


SEEN: dict[int, tuple[float, float, str]] = {}


def whole_pipeline() -> Pipeline:
    with Pipeline("p") as pipeline:
        batch = prompts(data="zoo:larger", batch_size=8, n=3)
        told = tell(batch)
        reward = score(told)
        white = whiten(reward, told)
        watch(white, told, reward, high(reward))
    return pipeline


def run(pipeline: Pipeline, ranks: int, count: int = 7, first: int = 0) -> tuple[Metrics, list[Event]]:
    SEEN.clear()
    planned = Planned(pipeline, compile_pipelines([pipeline])[0])
    deployment = Deployment((planned,), 0, 1)
    maker = ClassWithInitArgs(NodeHost, deployment, pools=deployment.pools())
    here = InProcessSet(NaiveWorkerGroup(ResourcePool([ranks]), maker))
    executor = Executor([planned], dict.fromkeys(deployment.pools(), here), seed=0, deadline=60.0)
    events: list[Event] = []
    executor.subscribe(events.append)
    source = SourceRows(torch.arange(count), torch.arange(first, first + count))
    return executor.run(planned, 1, {"prompts": source}), events


@pytest.mark.parametrize("ranks", [2, 3, 4, 9])
@pytest.mark.parametrize("count", [1, 7, 8])
def test_the_numbers_do_not_depend_on_the_ranks(ranks: int, count: int) -> None:
    alone, _ = run(whole_pipeline(), 1, count, first=2)
    seen = dict(SEEN)
    spread, events = run(whole_pipeline(), ranks, count, first=2)
    assert seen == SEEN
    assert spread.numbers() == pytest.approx(alone.numbers(), abs=1e-9, nan_ok=True)
    assert list(spread) == list(alone)
    finished = {event.op: event.rows for event in events if isinstance(event, OpFinished)}
    assert finished["whiten"] == finished["tell"] == 3 * count
    assert spread["rows_at_once"] == Sum(3.0 * count)


@node(writes="rewards")
def drawn_reward(group_ids: Int64[Tensor, " B"], seeds: Int64[Tensor, " B"]) -> Float32[Tensor, " B"]:
    """Rewards that differ, and one in seven that cannot be scored."""
    return torch.where(seeds % 7 == 0, float("nan"), (seeds % 97).float() + group_ids)


@node()
def watch_advantages(advantages: Float32[Tensor, "B T"], seeds: Int64[Tensor, " B"]) -> Metrics:
    """Tells the advantages of each row."""
    rows = zip(seeds.tolist(), advantages, strict=True)
    SEEN.update({seed: (float(row.sum()), float(row[0]), "") for seed, row in rows})
    return Metrics({"watched": Sum(float(len(seeds)))})


@pytest.mark.parametrize("ranks", [2, 3])
def test_reinforce_pp_whitens_over_all_ranks(ranks: int) -> None:
    def pipeline() -> Pipeline:
        with Pipeline("p") as step:
            batch = prompts(data="zoo:larger", batch_size=8, n=3)
            watch_advantages(reinforce_pp_advantage(tell(batch).only("response_mask"), drawn_reward(batch)))
        return step

    run(pipeline(), 1)
    seen = dict(SEEN)
    assert len(seen) == 21
    assert len({row[1] for row in seen.values()}) > 10
    run(pipeline(), ranks)
    assert seen.keys() == SEEN.keys()
    for seed, row in seen.items():
        assert SEEN[seed][:2] == pytest.approx(row[:2], abs=1e-6)


def test_a_filter_over_the_whole_batch_takes_rows_from_every_rank() -> None:
    @node(rows="filter", split="batch")
    def above_mean(rewards: Float32[Tensor, " B"]) -> Bool[Tensor, " B"]:
        return rewards > rewards.mean()

    @node()
    def note(rewards: Float32[Tensor, " B"], seeds: Int64[Tensor, " B"]) -> Metrics:
        SEEN.update({seed: (value, 0.0, "") for seed, value in zip(seeds.tolist(), rewards.tolist(), strict=True)})
        return Metrics({"noted": Sum(float(len(rewards)))})

    with Pipeline("p") as pipeline:
        reward = score(tell(prompts(data="zoo:larger", batch_size=8, n=3)))
        note(reward, above_mean(reward))
    run(pipeline, 1)
    seen = dict(SEEN)
    assert 0 < len(seen) < 21
    run(pipeline, 3)
    assert seen == SEEN


def test_freed_bytes_count_what_lay_on_every_rank() -> None:
    _, alone = run(whole_pipeline(), 1)
    _, spread = run(whole_pipeline(), 3)
    freed = [{e.columns: e.bytes for e in events if isinstance(e, ColumnsFreed)} for events in (alone, spread)]
    key = ("score.rewards",)
    assert freed[0].keys() == freed[1].keys()
    assert freed[0][key] == freed[1][key] == 7 * 3 * 4


def test_an_error_on_one_rank_ends_the_walk_and_names_the_node() -> None:
    @node()
    def fragile(group_ids: Int64[Tensor, " B"], answers: Objects[str]) -> Metrics:
        if 6 in group_ids.tolist():
            raise ValueError("group 6 is broken")
        return Metrics({})

    with Pipeline("p") as pipeline:
        fragile(prompts(data="zoo:larger", batch_size=8, n=2))
    with pytest.raises(ValueError, match=r"(?s)group 6 is broken.*in node `fragile`"):
        run(pipeline, 3)


def test_two_nodes_with_one_metric_name_are_told_apart_from_two_ranks_with_one() -> None:
    @node()
    def copycat(rewards: Float32[Tensor, " B"]) -> Metrics:
        return Metrics({"reward/mean": Mean(0.0, 1.0)})

    with Pipeline("p") as pipeline:
        reward = score(tell(prompts(data="zoo:larger", batch_size=8, n=2)))
        report(reward)
    run(pipeline, 3)
    with Pipeline("p") as pipeline:
        reward = score(tell(prompts(data="zoo:larger", batch_size=8, n=2)))
        copycat(reward)
    with pytest.raises(NodeError, match="`copycat` reports the metric `reward/mean`, which `score` reports already"):
        run(pipeline, 3)
