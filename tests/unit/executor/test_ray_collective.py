"""One rank raises in an update before its peer's collective: its message in seconds, no peer left blocked."""

import time

import psutil
import pytest
import torch
from jaxtyping import Bool, Float32, Int64
from torch import Tensor

from dagrl import Metrics, Pipeline, WorkerGroup, adamw, loss, node, policy
from dagrl.compiler import compile_pipelines
from dagrl.errors import WorkerError
from dagrl.executor.events import Event, OpStarted
from dagrl.executor.layout import SourceRows
from dagrl.executor.ray import RayRuntime
from dagrl.graph.specs import ResourcePool
from dagrl.nodes import generate, prompts, update_policy
from dagrl.workers.deployment import Planned

#: Seconds from the start of the update to the error in the driver.
LIMIT = 5.0


@node(writes="advantages")
def marked(group_ids: Int64[Tensor, " B"], response_mask: Bool[Tensor, "B T"]) -> Float32[Tensor, "B T"]:
    """1000 in the row of group 3, which one rank holds."""
    return (group_ids == 3)[:, None] * 1000.0 * response_mask


@loss()
def touchy(
    new_logprobs: Float32[Tensor, "B T"], advantages: Float32[Tensor, "B T"]
) -> tuple[Float32[Tensor, "B T"], Metrics]:
    """Raises on the rank that holds the marked row; the other goes on to the sum of the gradients."""
    if bool((advantages > 100).any()):
        raise ValueError("the marked row is here")
    return -new_logprobs, Metrics()


@pytest.mark.long
def test_a_rank_that_raises_before_a_collective_ends_the_walk(ray_session: object) -> None:
    runtime = RayRuntime(deadline=60.0)
    actor = WorkerGroup("actor", policy("zoo:tiny", optimizer=adamw(lr=1e-3)), pool=ResourcePool("main", [2]))
    with Pipeline("p") as pipeline:
        rollout = generate(actor, prompts(data="zoo:larger", batch_size=4), max_new_tokens=2)
        update_policy(actor, rollout, marked(rollout), loss=touchy())
    planned = Planned(pipeline, compile_pipelines([pipeline], runtime.machine)[0])
    executor = runtime.start([planned], seed=0, total_steps=1)
    try:
        ranks = [seat.pid for on in executor.site.sets for seat in on.group.seats]
        events: list[Event] = []
        executor.subscribe(events.append)
        with pytest.raises(WorkerError, match="ValueError: the marked row is here") as caught:
            executor.run(planned, 1, {"prompts": SourceRows(torch.arange(4), torch.arange(4))})
        began = next(event.at for event in events if isinstance(event, OpStarted) and event.op == "update_policy")
        assert time.time() - began < LIMIT
        assert any("in node `update_policy`" in note for note in caught.value.__notes__)
        assert caught.value.rank in (0, 1)
    finally:
        executor.close()
    end = time.monotonic() + 10
    while time.monotonic() < end and any(map(psutil.pid_exists, ranks)):
        time.sleep(0.05)
    assert not any(map(psutil.pid_exists, ranks))
