"""Ops on the processes of different pools run at the same time, ops on those of one pool one after the other."""

import time
from collections.abc import Iterator
from pathlib import Path

import pytest
import torch
from jaxtyping import Bool, Float32, Int64
from support import edited_pipeline, load_grpo
from torch import Tensor

from dagrl import Mean, Metrics, Pipeline, WorkerGroup, node, policy
from dagrl.compiler import compile_pipelines
from dagrl.executor.events import Event, OpFinished, OpStarted
from dagrl.executor.layout import SourceRows
from dagrl.executor.ray import RayExecutor, RayRuntime
from dagrl.graph import Policy
from dagrl.graph.specs import ResourcePool
from dagrl.nodes import generate, prompts
from dagrl.workers.deployment import Planned

NAP = 2.0


@node(writes="values")
def nap(
    model: Policy, response_lengths: Int64[Tensor, " B"], response_mask: Bool[Tensor, "B T"], *, seconds: float
) -> Float32[Tensor, "B T"]:
    """The length of each row, after a while."""
    time.sleep(seconds)
    return response_lengths[:, None] * response_mask.float()


@node()
def joined(values: Float32[Tensor, "B T"], ref_logprobs: Float32[Tensor, "B T"]) -> Metrics:
    """What both branches have written."""
    return Metrics({"both": Mean(float((values * 3 - ref_logprobs).sum()), float(len(values)))})


@pytest.fixture
def started(ray_session: object) -> Iterator[list[RayExecutor]]:
    executors: list[RayExecutor] = []
    yield executors
    for executor in executors:
        executor.close()


def start(started: list[RayExecutor], left: tuple[str, float], right: tuple[str, float]) -> tuple[RayExecutor, Planned]:
    """A rollout on pool `main`, then a fork into two naps on the named pools, and a join."""
    runtime = RayRuntime(deadline=60.0)
    groups = {
        pool: WorkerGroup(f"model_{pool}", policy("zoo:tiny", precision="fp32"), pool=ResourcePool(pool, [1]))
        for pool in dict.fromkeys(("main", left[0], right[0]))
    }
    with Pipeline("fork") as pipeline:
        rollout = generate(groups["main"], prompts(data="zoo:larger", batch_size=4, n=2), max_new_tokens=3)
        one = nap(groups[left[0]], rollout, seconds=left[1], name="left")
        two = nap(groups[right[0]], rollout, seconds=right[1], name="right")
        joined(one, two.rename(values="ref_logprobs"))
    planned = Planned(pipeline, compile_pipelines([pipeline], runtime.machine)[0])
    executor = runtime.start([planned], seed=0, total_steps=2)
    started.append(executor)
    return executor, planned


def walk(executor: RayExecutor, planned: Planned) -> tuple[float, float, list[Event]]:
    """The joined value, the seconds from the first nap's start to the last one's end, and the events."""
    events: list[Event] = []
    executor.subscribe(events.append)
    metrics = executor.run(planned, 1, {"prompts": SourceRows(torch.arange(4), torch.arange(4))})
    naps = [event.at for event in events if isinstance(event, OpStarted | OpFinished) and event.op in ("left", "right")]
    return metrics.numbers()["both"], max(naps) - min(naps), events


def order(events: list[Event]) -> list[tuple[str, str]]:
    kinds = {OpStarted: "start", OpFinished: "end"}
    return [(kinds[type(event)], event.op) for event in events
            if isinstance(event, OpStarted | OpFinished) and event.op in ("left", "right")]  # fmt: skip


@pytest.mark.long
def test_branches_on_two_pools_take_the_time_of_one(started: list[RayExecutor]) -> None:
    _, seconds, events = walk(*start(started, ("one", NAP), ("two", NAP)))
    assert {kind for kind, _ in order(events)[:2]} == {"start"}
    assert NAP <= seconds < 1.8 * NAP


@pytest.mark.long
def test_branches_on_one_pool_take_turns(started: list[RayExecutor]) -> None:
    _, seconds, events = walk(*start(started, ("main", NAP / 3), ("main", NAP / 3)))
    assert [kind for kind, _ in order(events)] == ["start", "end", "start", "end"]
    assert seconds >= 2 * NAP / 3


@pytest.mark.long
def test_which_branch_ends_first_changes_no_number(started: list[RayExecutor]) -> None:
    slow_left, _, left_last = walk(*start(started, ("one", NAP), ("two", 0.0)))
    slow_right, _, right_last = walk(*start(started, ("one", 0.0), ("two", NAP)))
    assert [order(left_last)[-1], order(right_last)[-1]] == [("end", "left"), ("end", "right")]
    assert slow_left == slow_right != 0


@pytest.mark.parametrize(
    ("kl", "pools"), [(0.0, ["main"]), pytest.param(0.1, ["main", "side"], marks=pytest.mark.long)]
)
def test_without_kl_the_reference_has_no_processes(
    kl: float, pools: list[str], tmp_path: Path, started: list[RayExecutor]
) -> None:
    old = 'ref = WorkerGroup("ref", policy(cfg.model, precision=cfg.precision), pool=actor.pool)'
    new = 'ref = WorkerGroup("ref", policy(cfg.model), pool=ResourcePool("side", process_on_nodes=[1]))'
    loaded = load_grpo(edited_pipeline(tmp_path, (old, new)), kl=kl, workers=1)
    runtime = RayRuntime()
    plans = compile_pipelines(loaded.pipelines, runtime.machine)
    planned = [Planned(pipeline, plan) for pipeline, plan in zip(loaded.pipelines, plans, strict=True)]
    started.append(runtime.start(planned, seed=0, total_steps=1))
    assert [on.name for on in started[-1].site.sets] == pools
