"""A branch on a pool of its own need not wait for the other branch on the pool whose rows it reads."""

import time
from collections.abc import Iterator

import pytest
import torch
from jaxtyping import Bool, Float32, Int64
from torch import Tensor

from dagrl import Mean, Metrics, Pipeline, WorkerGroup, node, policy
from dagrl.compiler import compile_pipelines
from dagrl.executor.events import Event, OpFinished
from dagrl.executor.layout import SourceRows
from dagrl.executor.ray import RayExecutor, RayRuntime
from dagrl.graph import Policy
from dagrl.graph.specs import ResourcePool
from dagrl.nodes import generate, prompts
from dagrl.workers.deployment import Planned

NAP = 3.0


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
    return Metrics({"both": Mean(float((values - ref_logprobs).sum()), float(len(values)))})


@pytest.fixture
def started(ray_session: object) -> Iterator[list[RayExecutor]]:
    executors: list[RayExecutor] = []
    yield executors
    for executor in executors:
        executor.close()


@pytest.mark.long
def test_a_branch_elsewhere_does_not_wait_for_the_branch_at_home(started: list[RayExecutor]) -> None:
    """The rows lie on `home`, where a long op starts first; what the other pool reads is sent before that."""
    runtime = RayRuntime(deadline=60.0)
    home, away = (
        WorkerGroup(name, policy("zoo:tiny", precision="fp32"), pool=ResourcePool(name, [1]))
        for name in ("home", "away")
    )
    with Pipeline("fork") as pipeline:
        rollout = generate(home, prompts(data="zoo:larger", batch_size=4, n=2), max_new_tokens=3)
        long = nap(home, rollout, seconds=NAP, name="long")
        short = nap(away, rollout, seconds=0.0, name="short")
        joined(long, short.rename(values="ref_logprobs"))
    planned = Planned(pipeline, compile_pipelines([pipeline], runtime.machine)[0])
    executor = runtime.start([planned], seed=0, total_steps=1)
    started.append(executor)
    events: list[Event] = []
    executor.subscribe(events.append)
    executor.run(planned, 1, {"prompts": SourceRows(torch.arange(4), torch.arange(4))})
    ended = [event.op for event in events if isinstance(event, OpFinished) and event.op in ("long", "short")]
    assert ended == ["short", "long"]
